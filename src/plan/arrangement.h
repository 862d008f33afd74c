#pragma once

// Where the elements of a matrix go in a tensor of any number of dimensions: transposed, split into
// heads, one expert of a stack, the first half of a fused projection.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tensor/dtype.h"

namespace quantmill {

// One digit of a row or column number, and how many elements apart its values lie.
struct AxisStep {
  std::uint64_t size = 1;
  std::uint64_t stride = 0;

  bool operator==(const AxisStep&) const = default;
};

// Element (row, column) is the sum of the digits' strides from the first element; the product of
// the sizes is the number of rows, or of columns.
struct Arrangement {
  std::vector<AxisStep> rows;  // the slowest digit first
  std::vector<AxisStep> cols;

  // What a number of these digits adds.
  static std::uint64_t offset(const std::vector<AxisStep>& steps, std::uint64_t number) {
    std::uint64_t sum = 0;
    for (std::size_t i = steps.size(); i-- > 0;) {
      sum += number % steps[i].size * steps[i].stride;
      number /= steps[i].size;
    }
    return sum;
  }

  bool operator==(const Arrangement&) const = default;
};

// A matrix inside one output tensor.
struct ArrangedPart {
  std::size_t shard = 0;          // index into Plan::shards
  std::uint64_t file_offset = 0;  // of element (0, 0)
  DType dtype = DType::kU8;       // of whole bytes
  Arrangement arrangement;

  [[nodiscard]] std::uint64_t element_bytes() const { return dtype_bits(dtype) / 8; }
};

// Where rows and columns of a TensorWork go. Scales and zero points are matrices of their own, one
// element for each block of block_rows x block_cols elements.
struct ArrangedTarget {
  std::uint64_t row_begin = 0;  // of the work's matrix
  std::uint64_t row_end = 0;
  std::uint64_t col_begin = 0;
  std::uint64_t col_end = 0;
  ArrangedPart values;  // elements or codes
  std::optional<ArrangedPart> scales;
  std::optional<ArrangedPart> zero_points;
  std::uint64_t block_rows = 1;
  std::uint64_t block_cols = 1;
};

}  // namespace quantmill
