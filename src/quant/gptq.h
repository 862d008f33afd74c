#pragma once

// From what was recorded of a linear's input to how rounding errors are fed back (kernels/gptq.h).

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/gptq.h"

namespace quantmill {

// `gram`: [columns, columns], the lower triangle of E[x x^T] (what is right of the diagonal is not
// read), of the inputs as the rounded weight meets them. `tokens`: that it was recorded on.
// Columns come in the order of falling E[x^2] (act-order), the earlier of equal ones first. To the
// diagonal clamp(columns / tokens, 0.01, 1) of its mean is added: fewer tokens tell less of how
// columns go together. What is beside it counts 0.9: that of large columns otherwise decides alone,
// whose diagonal the mean hardly adds to (docs/quality.md has what this gains). With P = the Gram
// matrix in that order and P = A A^T, A upper triangular, the factor of a before b is U[a][b] /
// U[a][a], U = A^-1, which is the Cholesky factor of P^-1 that GPTQ uses (arXiv:2210.17323,
// section 3.3, step 3). In double, by LAPACK (dpotrf, dtrtri), rounded once. The last bits can
// depend on the machine's LAPACK. Nothing if the matrix is zero or not positive definite even so.
std::optional<ErrorFeedback> make_error_feedback(std::span<const double> gram,
                                                 std::size_t columns,
                                                 std::uint64_t tokens);

}  // namespace quantmill
