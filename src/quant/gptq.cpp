#include "quant/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"

// LAPACK; text lengths and names are how Fortran takes them.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" {
void dpotrf_(const char* uplo, const int* n, double* a, const int* lda, int* info, std::size_t);
void dtrtri_(const char* uplo,
             const char* diag,
             const int* n,
             double* a,
             const int* lda,
             int* info,
             std::size_t,
             std::size_t);
}

// NOLINTEND(readability-identifier-naming)

namespace quantmill {
namespace {

constexpr double kLeastDamping = 0.01;
constexpr double kTrustInPairs = 0.9;  // of E[x_i x_j], i and j apart

std::vector<std::uint32_t> falling_diagonal(std::span<const double> gram, std::size_t columns) {
  std::vector<std::uint32_t> order(columns);
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) {
    return gram[a * columns + a] > gram[b * columns + b];
  });
  return order;
}

}  // namespace

std::optional<ErrorFeedback> make_error_feedback(std::span<const double> gram,
                                                 std::size_t columns,
                                                 std::uint64_t tokens) {
  check_invariant(gram.size() == columns * columns, "a Gram matrix of another size");
  double trace = 0;
  for (std::size_t c = 0; c < columns; ++c) {
    trace += gram[c * columns + c];
  }
  if (!(trace > 0)) {
    return std::nullopt;
  }
  const double share =
      static_cast<double>(columns) / static_cast<double>(std::max<std::uint64_t>(1, tokens));
  const double added = std::clamp(share, kLeastDamping, 1.0) * trace / static_cast<double>(columns);
  ErrorFeedback feedback{falling_diagonal(gram, columns), {}};
  // In reverse order, P = A A^T is L L^T: what LAPACK, which stores columns, calls U^T U.
  std::vector<double> factor(columns * columns);
  for (std::size_t i = 0; i < columns; ++i) {
    const std::size_t row = feedback.order[columns - 1 - i];
    for (std::size_t j = 0; j <= i; ++j) {
      const std::size_t col = feedback.order[columns - 1 - j];
      const double moment = gram[std::max(row, col) * columns + std::min(row, col)];
      factor[i * columns + j] = i == j ? moment + added : kTrustInPairs * moment;
    }
  }
  const int size = narrow<int>(columns);
  int failed = 0;
  dpotrf_("U", &size, factor.data(), &size, &failed, 1);
  if (failed == 0) {
    dtrtri_("U", "N", &size, factor.data(), &size, &failed, 1, 1);
  }
  if (failed != 0) {
    return std::nullopt;
  }
  feedback.factors.assign(columns * columns, 0.0F);
  for (std::size_t b = 0; b < columns; ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      const double* const row = factor.data() + (columns - 1 - a) * columns;
      const double ratio = row[columns - 1 - b] / row[columns - 1 - a];
      if (!std::isfinite(ratio)) {
        return std::nullopt;  // LAPACK does not look for NaN
      }
      feedback.factors[b * columns + a] = static_cast<float>(ratio);
    }
  }
  return feedback;
}

}  // namespace quantmill
