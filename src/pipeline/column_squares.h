#pragma once

// How large the weights are in each column, before anything is scaled.

#include <span>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/team.h"
#include "plan/plan.h"

namespace quantmill {

// For each activation of the architecture whose scales the plan searches, one value per column of
// its ColumnMap: the sum of squares over the rows of its quantized readers; empty for the others.
// Of a reader with more than 2048 rows every n-th is read, and stands for n. Collective over
// team.world; every rank gets the same values, whatever their number.
std::vector<std::vector<double>> measure_column_squares(const Team& team,
                                                        const Context& context,
                                                        const Checkpoint& checkpoint,
                                                        const Plan& plan);

// One value per column of an activation from one per channel.
std::vector<float> spread_channels(const ColumnMap& columns, std::span<const float> channels);

// The root mean square of each channel's columns over the activations of a fold group.
std::vector<double> pooled_weight_rms(const ResolvedArchitecture& architecture,
                                      const FoldGroup& group,
                                      const std::vector<std::vector<double>>& column_squares);

}  // namespace quantmill
