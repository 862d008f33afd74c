#include "pipeline/finite_rows.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

std::uint64_t rows_at_a_time(std::uint64_t cols, std::uint64_t together) {
  constexpr std::uint64_t kElements = std::uint64_t{1} << 16;
  return std::max<std::uint64_t>(1, kElements / cols / together) * together;
}

std::uint64_t rows_of_pass(const Context& context, std::uint64_t cols, std::uint64_t together) {
  if (context.gpu == nullptr) {
    return rows_at_a_time(cols, together);
  }
  const std::uint64_t fitting = work_elements(context, sizeof(float), 1) / cols;
  return std::max<std::uint64_t>(1, fitting / together) * together;
}

ConstFloatMatrix FiniteRows::read(WeightReader& reader,
                                  const ModelTensor& tensor,
                                  std::span<const std::uint64_t> rows,
                                  const ColumnMap& columns) {
  const std::uint64_t cols = tensor.in_features();
  const std::size_t width = columns.num_columns();
  reader.load(tensor, rows);
  float* values = nullptr;
  if (width < cols && context_.gpu != nullptr) {
    cut_.resize(rows.size() * cols);
    values = cut_.data();
  } else {
    rows_.resize(rows.size() * cols);
    values = rows_.data();
  }
  const auto bad = reader.decode(0, FloatMatrix{values, rows.size(), cols});
  if (bad) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "tensor {}: row {}, column {} is {}; a damaged weight can't be quantized. Fetch the "
            "checkpoint again, or leave the tensor as it is with --keep",
            tensor.name,
            rows[bad->row],
            bad->col,
            element_at(context_, &values[bad->row * cols + bad->col])));
  }
  for (std::size_t row = 0; width < cols && row < rows.size(); ++row) {
    std::copy_n(&values[row * cols + columns.start], width, &values[row * width]);
  }
  return {values, rows.size(), width};
}

}  // namespace quantmill
