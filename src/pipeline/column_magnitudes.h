#pragma once

// How large the weights are in each column, before anything is scaled.

#include <span>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/team.h"
#include "plan/plan.h"

namespace quantmill {

// Over the rows of the quantized readers of an activation, one value per column of its ColumnMap.
struct ColumnMagnitudes {
  std::vector<double> squares;  // sum of w^2
  // Sum of |w| / max |w| of its block of 32 columns in the same row (a block of zeros: 0): what a
  // column takes of the range of the scale that it shares. The last block may be cut.
  std::vector<double> shares;
};

// For each activation of the architecture whose scales the plan searches; empty for the others.
// Of a reader with more than 2048 rows every n-th is read, and stands for n. Collective over
// team.world; every rank gets the same values, whatever their number.
std::vector<ColumnMagnitudes> measure_column_magnitudes(const Team& team,
                                                        const Context& context,
                                                        const Checkpoint& checkpoint,
                                                        const Plan& plan);

// One value per column of an activation from one per channel.
std::vector<float> spread_channels(const ColumnMap& columns, std::span<const float> channels);

// The root mean square of each channel's columns over the activations of a fold group, but for a
// factor that all channels share.
std::vector<double> pooled_weight_rms(const ResolvedArchitecture& architecture,
                                      const FoldGroup& group,
                                      const std::vector<ColumnMagnitudes>& magnitudes);

// The mean share of each channel's columns, but for a factor that all channels share.
std::vector<double> pooled_weight_shares(const ResolvedArchitecture& architecture,
                                         const FoldGroup& group,
                                         const std::vector<ColumnMagnitudes>& magnitudes);

}  // namespace quantmill
