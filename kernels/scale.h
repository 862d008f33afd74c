#pragma once

// Multiplies columns and divides rows of a matrix: what a fold does to a weight.

#include <span>

#include "device/context.h"
#include "kernels/matrix.h"

namespace quantmill {

// What a matrix is scaled by. An empty span leaves that side as it is; otherwise it has cols (rows)
// elements. A weight [out, in] has factors for its columns and divisors for its rows; one that is
// stored transposed has factors for its rows and divisors for its columns.
struct MatrixFactors {
  std::span<const float> columns = {};
  std::span<const float> rows = {};
  std::span<const float> column_divisors = {};
  std::span<const float> row_divisors = {};
};

// values[r][c] = (((values[r][c] * columns[c]) * rows[r]) / column_divisors[c]) / row_divisors[r],
// each operation rounded to float once.
void scale_matrix(const Context& context, FloatMatrix values, const MatrixFactors& factors);

}  // namespace quantmill
