#pragma once

// How far one matrix is from another.

#include <span>

#include "device/context.h"
#include "kernels/matrix.h"

namespace quantmill {

// Sums over all elements, in double.
struct ErrorSums {
  double squared_error = 0;  // (got - want)^2
  double squared_norm = 0;   // want^2

  // sqrt(squared_error / squared_norm); 0 if both are 0.
  [[nodiscard]] double relative() const;
};

// Adds the sums of `got` against `want` (same shape, any number of columns) to `sums`. Differences
// in float, squares and sums in double: column c is added to lane c % 16 of 16 lanes per row, which
// add_lanes (lane_sums.h) adds at the row's end; rows in order, so that cutting a matrix by rows
// changes nothing.
void add_errors(const Context& context,
                ConstFloatMatrix got,
                ConstFloatMatrix want,
                ErrorSums& sums);

}  // namespace quantmill
