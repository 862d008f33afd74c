#pragma once

// How large a matrix is, column by column and row by row.

#include <span>

#include "device/context.h"
#include "kernels/matrix.h"

namespace quantmill {

// One value per column each, to add to.
struct ColumnSums {
  std::span<double> squares;  // sum of v^2
  // Sum of |v| / max |v| of its block of 32 columns in the same row: what a column takes of the
  // range of the scale that it shares. A block of zeros adds 0; the last block may be cut.
  std::span<double> shares;
};

// Adds the columns of `values` (finite) to `columns`, and writes each row's sum of (v * weight)^2,
// with one weight for each column, to `row_squares` [rows]. Arithmetic, equal on every backend to
// the bit, each operation rounded once:
//   float:  v * weight; |v| * (1 / amax), with amax not below 2^-126, the smallest normal number
//   double: v * v; sums of columns down the rows, so that cutting a matrix by rows changes nothing;
//           those of a row as in add_errors (compare.h): in 16 lanes by column modulo 16, added by
//           add_lanes (lane_sums.h)
void add_magnitudes(const Context& context,
                    ConstFloatMatrix values,
                    std::span<const float> weights,
                    const ColumnSums& columns,
                    std::span<double> row_squares);

}  // namespace quantmill
