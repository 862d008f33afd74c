#pragma once

// Objective::kW4A4: what rounding the activations of a fold group is expected to cost.

#include <cstddef>
#include <span>
#include <vector>

#include "device/context.h"
#include "plan/plan.h"
#include "stats/statistics.h"

namespace quantmill {

// For each candidate s of an activation's group (by channel) one error for each block of its
// columns.
struct ActivationErrors {
  double tokens = 1;  // that each error stands for
  std::vector<std::vector<double>> by_candidate;
};

// Empty if servers do not round the activation to MXFP4 (not all of its quantized readers are in
// that scheme), or column_squares (ColumnMagnitudes::squares of this activation) are. `counted`:
// counts_tokens.
ActivationErrors activation_errors(const Context& context,
                                   const Plan& plan,
                                   const Statistics& statistics,
                                   bool counted,
                                   std::size_t activation,
                                   std::span<const double> column_squares,
                                   const std::vector<std::vector<float>>& candidates);

}  // namespace quantmill
