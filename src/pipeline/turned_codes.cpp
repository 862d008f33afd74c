#include "pipeline/turned_codes.h"

#include <algorithm>

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

}  // namespace quantmill
