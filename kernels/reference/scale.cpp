#include "kernels/backends.h"

namespace quantmill::reference {

void scale_matrix(FloatMatrix values,
                  std::span<const float> column_factors,
                  std::span<const float> row_divisors) {
  for (std::size_t r = 0; r < values.rows; ++r) {
    const std::span<float> row = values.row(r);
    for (std::size_t c = 0; c < values.cols; ++c) {
      if (!column_factors.empty()) {
        row[c] *= column_factors[c];
      }
      if (!row_divisors.empty()) {
        row[c] /= row_divisors[r];
      }
    }
  }
}

}  // namespace quantmill::reference
