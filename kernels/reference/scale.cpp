#include "kernels/backends.h"

namespace quantmill::reference {

void scale_matrix(FloatMatrix values, const MatrixFactors& factors) {
  for (std::size_t r = 0; r < values.rows; ++r) {
    const std::span<float> row = values.row(r);
    for (std::size_t c = 0; c < values.cols; ++c) {
      if (!factors.columns.empty()) {
        row[c] *= factors.columns[c];
      }
      if (!factors.rows.empty()) {
        row[c] *= factors.rows[r];
      }
      if (!factors.column_divisors.empty()) {
        row[c] /= factors.column_divisors[c];
      }
      if (!factors.row_divisors.empty()) {
        row[c] /= factors.row_divisors[r];
      }
    }
  }
}

}  // namespace quantmill::reference
