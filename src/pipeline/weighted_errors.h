#pragma once

// How far quantized weights are from what they stand for, where it matters: by what their columns
// are multiplied by while the model runs.

#include <span>

#include "kernels/compare.h"
#include "kernels/matrix.h"

namespace quantmill {

// Adds sums over (w_c (got - want))^2 and (w_c want)^2, with one weight w per column, to `sums`; of
// the same shape. With w = sqrt(E[x^2]) their ratio is that of the expected squares of W x, if
// columns are independent. Differences and products in float, squares and sums in double: column c
// is added to lane c % 8 of 8 lanes per row, which are added up at the row's end; rows in order, so
// that cutting a matrix by rows changes nothing.
void add_weighted_errors(ConstFloatMatrix got,
                         ConstFloatMatrix want,
                         std::span<const float> weights,
                         ErrorSums& sums);

}  // namespace quantmill
