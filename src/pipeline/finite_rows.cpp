#include "pipeline/finite_rows.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

void read_finite_rows(WeightReader& reader,
                      const ModelTensor& tensor,
                      std::uint64_t first,
                      std::uint64_t rows,
                      std::uint64_t step,
                      const ColumnMap& columns,
                      std::vector<float>& values) {
  const std::uint64_t cols = tensor.in_features();
  reader.load(tensor, all_rows(tensor), first, rows, step);
  values.resize(rows * cols);
  const auto bad = reader.decode(0, FloatMatrix{values.data(), rows, cols});
  if (bad) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "tensor {}: row {}, column {} is {}; a damaged weight can't be quantized. Fetch the "
            "checkpoint again, or leave the tensor as it is with --keep",
            tensor.name,
            first + bad->row * step,
            bad->col,
            values[bad->row * cols + bad->col]));
  }
  const std::size_t width = columns.num_columns();
  for (std::uint64_t row = 0; width < cols && row < rows; ++row) {
    std::copy_n(&values[row * cols + columns.start], width, &values[row * width]);
  }
}

}  // namespace quantmill
