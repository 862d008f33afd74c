#pragma once

// How far one matrix is from another.

#include <span>

#include "device/context.h"
#include "kernels/matrix.h"

namespace quantmill {

// Sums over all elements, in double, with one weight w for each column (1 where none are given).
struct ErrorSums {
  double squared_error = 0;  // (w (got - want))^2
  double squared_norm = 0;   // (w want)^2

  // sqrt(squared_error / squared_norm); 0 if both are 0.
  [[nodiscard]] double relative() const;
};

// Adds the sums of `got` against `want` (same shape, any number of columns) to `sums`. `weights`:
// [cols], or empty. With w = sqrt(E[x^2]) of the inputs, the sums' ratio is that of the expected
// squares of W x, if columns are independent. Differences and products with weights in float,
// squares and sums in double: column c is added to lane c % 16 of 16 lanes per row, which
// add_lanes (lane_sums.h) adds at the row's end; rows in order, so that cutting a matrix by rows
// changes nothing.
void add_errors(const Context& context,
                ConstFloatMatrix got,
                ConstFloatMatrix want,
                ErrorSums& sums,
                std::span<const float> weights = {});

}  // namespace quantmill
