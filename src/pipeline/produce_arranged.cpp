#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/convert.h"
#include "pipeline/produce.h"

namespace quantmill {

namespace {

// Columns [begin, end) of rows of `cols` elements.
void cut_columns(std::span<const std::byte> bytes,
                 std::uint64_t row_bytes,
                 std::uint64_t begin,
                 std::uint64_t end,
                 std::vector<std::byte>& cut) {
  cut.clear();
  for (std::uint64_t row = 0; row < bytes.size(); row += row_bytes) {
    const std::span<const std::byte> wanted = bytes.subspan(row + begin, end - begin);
    cut.insert(cut.end(), wanted.begin(), wanted.end());
  }
}

}  // namespace

std::uint64_t RowProducer::largest_buffer_bytes(const Plan& plan) {
  const bool arranges = std::ranges::any_of(
      plan.tensors, [](const TensorWork& work) { return !work.targets.empty(); });
  return std::uint64_t{arranges ? 64U : 8U} << 20;
}

void RowProducer::rearrange(const WriteTask& task, const Emit& emit) {
  const TensorWork& work = plan_.tensors[task.tensor];
  const std::uint64_t row_bytes = work.parts[0].row_bytes;
  const std::uint64_t rows_held = std::max<std::uint64_t>(1, buffer_bytes_ / row_bytes);
  std::vector<std::byte> stored;
  for (std::uint64_t begin = task.begin; begin < task.end; begin += rows_held) {
    const std::uint64_t end = std::min(begin + rows_held, task.end);
    stored.resize((end - begin) * row_bytes);
    read_stored(checkpoint_,
                plan_.architecture,
                plan_.architecture.tensors[work.tensor],
                begin * row_bytes,
                stored);
    arrange(work, begin, end, stored, emit);
  }
}

void RowProducer::arrange(const TensorWork& work,
                          std::uint64_t begin,
                          std::uint64_t end,
                          std::span<const std::byte> elements,
                          const Emit& emit) {
  if (work.is_quantized()) {
    if (!work.copies_codes) {
      coded_.rows = end - begin;
      coded_.cols = work.cols;
      const auto index = static_cast<std::size_t>(&work - plan_.tensors.data());
      const float largest = ranges_.weights.empty() ? 0 : ranges_.weights[index];
      std::vector<std::span<const std::byte>> parts(encoded_parts_.begin(), encoded_parts_.end());
      unpack_scheme(context_, work.scheme, largest, parts, coded_);
    }
    check_codes(work, begin);
  }
  for (const ArrangedTarget& target : work.targets) {
    const std::uint64_t first = std::max(begin, target.row_begin);
    const std::uint64_t last = std::min(end, target.row_end);
    if (first >= last) {
      continue;
    }
    const std::uint64_t cols = target.col_end - target.col_begin;
    const PartRange range{first - target.row_begin, last - first, 0, cols};
    if (work.is_quantized()) {
      arrange_codes(work, target, first - begin, range, emit);
      continue;
    }
    const std::uint64_t element = target.values.element_bytes();
    const std::uint64_t row_bytes = work.cols * element;
    std::span<const std::byte> rows =
        elements.subspan((first - begin) * row_bytes, (last - first) * row_bytes);
    std::vector<std::byte> cut;
    if (cols != work.cols) {
      cut_columns(rows, row_bytes, target.col_begin * element, target.col_end * element, cut);
      rows = cut;
    }
    emit_arranged(target.values, range, rows, turned_, emit);
  }
}

// Rows of coded_ from `begin` on.
void RowProducer::arrange_codes(const TensorWork& work,
                                const ArrangedTarget& target,
                                std::uint64_t begin,
                                const PartRange& range,
                                const Emit& emit) {
  emit_arranged(
      target.values,
      range,
      std::span<const std::byte>(coded_.codes).subspan(begin * work.cols, range.rows * work.cols),
      turned_,
      emit);
  check_invariant(range.row % target.block_rows == 0, "a block is cut");
  const PartRange blocks{range.row / target.block_rows,
                         range.rows / target.block_rows,
                         0,
                         work.cols / target.block_cols};
  std::vector<std::byte> zero_points;
  block_scales_.clear();
  for (std::uint64_t row = 0; row < blocks.rows; ++row) {
    const std::uint64_t first = (begin + row * target.block_rows) * coded_.groups;
    for (std::uint64_t col = 0; col < blocks.cols; ++col) {
      const std::uint64_t at = first + col * target.block_cols / coded_.group;
      block_scales_.push_back(coded_.scales[at]);
      if (target.zero_points) {
        zero_points.push_back(static_cast<std::byte>(coded_.zero_points[at]));
      }
    }
  }
  std::vector<std::byte> scales(block_scales_.size() * target.scales->element_bytes());
  (void)encode_from_float(
      context_, {block_scales_.data(), 1, block_scales_.size()}, target.scales->dtype, scales);
  emit_arranged(*target.scales, blocks, scales, turned_, emit);
  if (target.zero_points) {
    emit_arranged(*target.zero_points, blocks, zero_points, turned_, emit);
  }
}

// `begin`: the work's row number of the first.
void RowProducer::check_codes(const TensorWork& work, std::uint64_t begin) const {
  const auto refuse = [&](std::size_t row, const std::string& what) {
    throw Error(ErrorCode::kInput,
                fmt::format("tensor {}: row {}, {}; the checkpoint is damaged. Fetch it again, or "
                            "leave the tensor out with a file for --jax-model",
                            work.name,
                            begin + row,
                            what));
  };
  const bool is_e4m3 = work.targets.front().values.dtype == DType::kF8E4m3;
  for (std::size_t i = 0; is_e4m3 && i < coded_.codes.size(); ++i) {
    if ((coded_.codes[i] & std::byte{0x7f}) == std::byte{0x7f}) {
      refuse(i / coded_.cols, fmt::format("column {}: a code is NaN", i % coded_.cols));
    }
  }
  for (std::size_t i = 0; i < coded_.scales.size(); ++i) {
    if (!std::isfinite(coded_.scales[i])) {
      refuse(i / coded_.groups, fmt::format("scale {} is {}", i % coded_.groups, coded_.scales[i]));
    }
  }
}

}  // namespace quantmill
