#include "pipeline/turned_codes.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/int4_pack.h"
#include "kernels/mx.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kTileRows = 64;  // stored rows that are decoded at a time

std::span<const std::uint8_t> as_codes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace

void read_stretches(const Checkpoint& checkpoint,
                    const SourceTensor& source,
                    std::uint64_t row_bytes,
                    std::uint64_t first_row,
                    std::uint64_t num_rows,
                    std::uint64_t begin,
                    std::span<std::byte> bytes) {
  const std::uint64_t size = num_rows == 0 ? 0 : bytes.size() / num_rows;
  if (size == row_bytes) {
    checkpoint.read(source, first_row * row_bytes, bytes);
    return;
  }
  for (std::uint64_t row = 0; row < num_rows; ++row) {
    checkpoint.read(source, (first_row + row) * row_bytes + begin, bytes.subspan(row * size, size));
  }
}

void read_turned_mx(const Context& context,
                    const Checkpoint& checkpoint,
                    const SourceWeight& weight,
                    std::uint64_t slice,
                    std::uint64_t width,
                    std::uint64_t begin,
                    FloatMatrix values) {
  const SourceTensor& codes = checkpoint.tensors()[weight.codes];
  const SourceTensor& scales = checkpoint.tensors()[*weight.scales];
  const std::uint64_t first_block = begin / kMxBlock;
  const std::uint64_t blocks = (begin + values.rows + kMxBlock - 1) / kMxBlock - first_block;
  const std::uint64_t block_bytes = mx_packed_bytes(weight.element, kMxBlock);
  const std::uint64_t row_blocks = width / kMxBlock;
  const std::uint64_t first_of_slice = slice * values.cols;
  const std::uint64_t skipped = begin - first_block * kMxBlock;
  std::vector<std::byte> packed;
  std::vector<std::byte> scale_bytes;
  std::vector<float> tile;
  for (std::uint64_t first = 0; first < values.cols; first += kTileRows) {
    const std::uint64_t rows = std::min<std::uint64_t>(kTileRows, values.cols - first);
    packed.resize(rows * blocks * block_bytes);
    scale_bytes.resize(rows * blocks);
    read_stretches(checkpoint,
                   codes,
                   row_blocks * block_bytes,
                   first_of_slice + first,
                   rows,
                   first_block * block_bytes,
                   packed);
    read_stretches(
        checkpoint, scales, row_blocks, first_of_slice + first, rows, first_block, scale_bytes);
    tile.resize(rows * blocks * kMxBlock);
    mx_dequantize(context,
                  weight.element,
                  as_codes(packed),
                  as_codes(scale_bytes),
                  FloatMatrix{tile.data(), rows, blocks * kMxBlock});
    for (std::uint64_t row = 0; row < values.rows; ++row) {
      for (std::uint64_t i = 0; i < rows; ++i) {
        values.row(row)[first + i] = tile[i * blocks * kMxBlock + skipped + row];
      }
    }
  }
}

void read_columns(const Checkpoint& checkpoint,
                  const SourceTensor& source,
                  std::span<const std::uint64_t> columns,
                  std::vector<std::byte>& bytes) {
  const std::uint64_t element = dtype_bits(source.entry.dtype) / 8;
  const std::uint64_t rows = source.entry.shape[0];
  bytes.resize(columns.size() * rows * element);
  if (columns.empty()) {
    return;
  }
  const auto [first, last] = std::minmax_element(columns.begin(), columns.end());
  const std::uint64_t width = *last - *first + 1;
  std::vector<std::byte> tile;
  for (std::uint64_t begin = 0; begin < rows; begin += kTileRows) {
    const std::uint64_t now = std::min(kTileRows, rows - begin);
    tile.resize(now * width * element);
    read_stretches(
        checkpoint, source, source.entry.shape[1] * element, begin, now, *first * element, tile);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      for (std::uint64_t row = 0; row < now; ++row) {
        std::memcpy(&bytes[(i * rows + begin + row) * element],
                    &tile[(row * width + columns[i] - *first) * element],
                    element);
      }
    }
  }
}

void read_integer_columns(const Context& context,
                          const Checkpoint& checkpoint,
                          const SourceTensor& source,
                          const IntPacking& packing,
                          bool packs_rows,
                          std::span<const std::uint64_t> columns,
                          std::vector<std::int8_t>& codes) {
  const std::uint64_t in_word = 32 / packing.bits;
  const std::uint64_t rows_of_word = packs_rows ? in_word : 1;
  const std::uint64_t columns_of_word = packs_rows ? 1 : in_word;
  const std::uint64_t stored_rows = source.entry.shape[0];
  codes.resize(columns.size() * stored_rows * rows_of_word);
  if (columns.empty()) {
    return;
  }
  const auto [first, last] = std::minmax_element(columns.begin(), columns.end());
  const std::uint64_t first_word = *first / columns_of_word;
  const std::uint64_t words = *last / columns_of_word + 1 - first_word;
  const std::uint64_t width = words * columns_of_word;
  std::vector<std::byte> packed;
  std::vector<std::int8_t> tile;
  for (std::uint64_t begin = 0; begin < stored_rows; begin += kTileRows / rows_of_word) {
    const std::uint64_t now = std::min(kTileRows / rows_of_word, stored_rows - begin);
    const std::uint64_t rows = now * rows_of_word;
    packed.resize(now * words * 4);
    read_stretches(
        checkpoint, source, source.entry.shape[1] * 4, begin, now, first_word * 4, packed);
    tile.resize(rows * width);
    if (packs_rows) {
      int_unpack_rows(context, packing, as_codes(packed), rows, width, tile);
    } else {
      int_unpack_columns(context, packing, as_codes(packed), rows, width, tile);
    }
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::uint64_t column = columns[i] - first_word * columns_of_word;
      std::int8_t* const to = &codes[(i * stored_rows + begin) * rows_of_word];
      for (std::uint64_t row = 0; row < rows; ++row) {
        to[row] = tile[row * width + column];
      }
    }
  }
}

std::vector<std::uint32_t> read_column_groups(const Checkpoint& checkpoint,
                                              const SourceWeight& weight) {
  const SourceTensor& source = checkpoint.tensors()[*weight.column_groups];
  std::vector<std::int32_t> stored(source.entry.num_elements());
  checkpoint.read(source, 0, std::as_writable_bytes(std::span(stored)));
  // compressed-tensors fills it with -1 where it reorders nothing.
  if (std::ranges::all_of(stored, [](std::int32_t group) { return group == -1; })) {
    return {};
  }
  const std::uint64_t num_groups = stored.size() / weight.block_cols;
  bool side_by_side = true;
  std::vector<std::uint32_t> groups;
  for (const std::int32_t group : stored) {
    if (group < 0 || static_cast<std::uint64_t>(group) >= num_groups) {
      throw Error(ErrorCode::kInput,
                  fmt::format("tensor {}: column {} is in group {}, but there are {} groups; the "
                              "checkpoint is damaged",
                              source.entry.name,
                              groups.size(),
                              group,
                              num_groups));
    }
    side_by_side =
        side_by_side && static_cast<std::uint64_t>(group) == groups.size() / weight.block_cols;
    groups.push_back(static_cast<std::uint32_t>(group));
  }
  return side_by_side ? std::vector<std::uint32_t>() : groups;
}

}  // namespace quantmill
