#pragma once

// Views of float matrices in host memory: row-major, contiguous, never owning.

#include <cstddef>
#include <span>

namespace quantmill {

struct FloatMatrix {
  float* data = nullptr;
  std::size_t rows = 0;
  std::size_t cols = 0;

  [[nodiscard]] std::span<float> row(std::size_t index) const {
    return {data + index * cols, cols};
  }
};

struct ConstFloatMatrix {
  const float* data = nullptr;
  std::size_t rows = 0;
  std::size_t cols = 0;

  ConstFloatMatrix() = default;

  ConstFloatMatrix(const float* values, std::size_t num_rows, std::size_t num_cols)
      : data(values), rows(num_rows), cols(num_cols) {}

  // Not explicit: it is a read-only view of the same matrix, as span<const T> is of span<T>, and no
  // value changes on the way.
  ConstFloatMatrix(FloatMatrix other) : data(other.data), rows(other.rows), cols(other.cols) {}

  [[nodiscard]] std::span<const float> row(std::size_t index) const {
    return {data + index * cols, cols};
  }
};

// A position in a matrix.
struct MatrixPosition {
  std::size_t row = 0;
  std::size_t col = 0;

  friend bool operator==(const MatrixPosition&, const MatrixPosition&) = default;
};

}  // namespace quantmill
