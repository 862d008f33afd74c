#pragma once

// Multiplies columns and divides rows of a matrix: what a fold does to a weight.

#include <span>

#include "device/context.h"
#include "kernels/matrix.h"

namespace quantmill {

// values[r][c] = (values[r][c] * column_factors[c]) / row_divisors[r], each operation rounded to
// float once. An empty span leaves that side as it is; otherwise it has cols (rows) elements.
void scale_matrix(const Context& context,
                  FloatMatrix values,
                  std::span<const float> column_factors,
                  std::span<const float> row_divisors);

}  // namespace quantmill
