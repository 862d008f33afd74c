#pragma once

// How large the weights are in each column, before anything is scaled.

#include <map>
#include <span>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "kernels/magnitudes.h"
#include "pipeline/finite_rows.h"
#include "pipeline/team.h"
#include "pipeline/weight_reader.h"
#include "plan/plan.h"

namespace quantmill {

// Over the rows of the quantized readers of an activation, one value per column of its ColumnMap.
struct ColumnMagnitudes {
  std::vector<double> squares;  // sum of w^2
  std::vector<double> shares;   // ColumnSums::shares (kernels/magnitudes.h)
};

// By activation.
using MagnitudeTable = std::map<std::size_t, ColumnMagnitudes>;

// Without values for an activation that was not measured.
const ColumnMagnitudes& magnitudes_of(const MagnitudeTable& table, std::size_t activation);

// Reads weights to measure them. Not thread-safe.
class MagnitudeMeter {
 public:
  // The arguments must outlive it.
  MagnitudeMeter(const Context& context, const Checkpoint& checkpoint, const Plan& plan);

  // Adds all rows of a reader of an activation to `sums` (of its columns). Returns the sum of (w *
  // weight)^2 of each row, with one weight for each column. Errors as FiniteRows::read.
  std::vector<double> add(const ModelTensor& tensor,
                          const ColumnMap& columns,
                          std::span<const float> weights,
                          const ColumnSums& sums);

 private:
  std::vector<double> add_rows(const ModelTensor& tensor,
                               const ColumnMap& columns,
                               std::span<const float> weights,
                               const ColumnSums& sums);

  const Context& context_;
  WeightReader reader_;
  FiniteRows rows_;
};

// Of each activation whose scales the plan searches. Collective over team.world; every rank gets
// the same values, whatever their number. Errors as FiniteRows::read.
MagnitudeTable measure_column_magnitudes(const Team& team,
                                         const Context& context,
                                         const Checkpoint& checkpoint,
                                         const Plan& plan);

// One value per column of an activation from one per channel.
std::vector<float> spread_channels(const ColumnMap& columns, std::span<const float> channels);

// The same of each candidate: [candidates, columns].
std::vector<float> spread_candidates(const ColumnMap& columns,
                                     const std::vector<std::vector<float>>& candidates);

// The root mean square of each channel's columns over the activations of a fold group, but for a
// factor that all channels share.
std::vector<double> pooled_weight_rms(const ResolvedArchitecture& architecture,
                                      const FoldGroup& group,
                                      const MagnitudeTable& magnitudes);

// The mean share of each channel's columns, but for a factor that all channels share.
std::vector<double> pooled_weight_shares(const ResolvedArchitecture& architecture,
                                         const FoldGroup& group,
                                         const MagnitudeTable& magnitudes);

}  // namespace quantmill
