#include "pipeline/finite_rows.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

std::uint64_t rows_at_a_time(std::uint64_t cols, std::uint64_t together) {
  constexpr std::uint64_t kElements = std::uint64_t{1} << 16;
  return std::max<std::uint64_t>(1, kElements / cols / together) * together;
}

void read_finite_rows(WeightReader& reader,
                      const ModelTensor& tensor,
                      std::span<const std::uint64_t> rows,
                      const ColumnMap& columns,
                      std::vector<float>& values) {
  const std::uint64_t cols = tensor.in_features();
  reader.load(tensor, rows);
  values.resize(rows.size() * cols);
  const auto bad = reader.decode(0, FloatMatrix{values.data(), rows.size(), cols});
  if (bad) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "tensor {}: row {}, column {} is {}; a damaged weight can't be quantized. Fetch the "
            "checkpoint again, or leave the tensor as it is with --keep",
            tensor.name,
            rows[bad->row],
            bad->col,
            values[bad->row * cols + bad->col]));
  }
  const std::size_t width = columns.num_columns();
  for (std::size_t row = 0; width < cols && row < rows.size(); ++row) {
    std::copy_n(&values[row * cols + columns.start], width, &values[row * width]);
  }
}

}  // namespace quantmill
