// The public kernels of int4.h and int4_pack.h: check shapes once, then hand over to the backend
// that the context names.

#include <algorithm>

#include "base/error.h"
#include "kernels/backends.h"
#include "kernels/convert.h"
#include "kernels/on_backend.h"

namespace quantmill {
namespace {

void check_groups(const IntSpec& spec,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  std::size_t num_zero_points) {
  check_invariant(spec.bits == 4 || spec.bits == 8, "integer codes have 4 or 8 bits");
  check_invariant(spec.group > 0 && values.cols % spec.group == 0,
                  "the columns of an integer matrix must be a multiple of the group");
  check_invariant(scales.rows == values.rows && scales.cols == values.cols / spec.group,
                  "there must be one scale for each group");
  check_invariant(
      num_zero_points == (spec.is_symmetric ? 0 : scales.rows * scales.cols),
      "there must be one zero point for each asymmetric group, none for a symmetric one");
}

void check_packing(const IntPacking& packing,
                   std::size_t num_codes,
                   std::size_t rows,
                   std::size_t cols) {
  check_invariant(packing.bits == 4 || packing.bits == 8, "packed integers have 4 or 8 bits");
  check_invariant(packing.order == NibbleOrder::kSequential || packing.bits == 4,
                  "the AWQ order is one of 4-bit codes");
  check_invariant(num_codes == rows * cols, "the codes of a matrix have the wrong size");
}

void check_columns(const IntPacking& packing,
                   std::size_t num_codes,
                   std::size_t rows,
                   std::size_t cols,
                   std::size_t packed_bytes) {
  check_packing(packing, num_codes, rows, cols);
  check_invariant(packed_bytes == rows * int_packed_words(packing.bits, cols) * 4,
                  "the packed codes of a matrix have the wrong size");
}

void check_rows(const IntPacking& packing,
                std::size_t num_codes,
                std::size_t rows,
                std::size_t cols,
                std::size_t packed_bytes) {
  check_packing(packing, num_codes, rows, cols);
  check_invariant(packing.order == NibbleOrder::kSequential,
                  "words along rows have no order of their own");
  check_invariant(packed_bytes == int_packed_words(packing.bits, rows) * cols * 4,
                  "the packed codes of a matrix have the wrong size");
}

}  // namespace

void int_scales(const Context& context,
                const IntSpec& spec,
                ConstFloatMatrix values,
                float clip,
                FloatMatrix scales,
                std::span<std::int8_t> zero_points) {
  check_groups(spec, values, scales, zero_points.size());
  check_invariant(is_convertible(spec.scale_type), "scales are stored as BF16, F16 or F32");
  check_invariant(clip > 0 && clip <= 1, "a clip ratio is above 0 and at most 1");
  on_backend(context,
             reference::int_scales,
             cpu::int_scales,
             gpu::int_scales,
             spec,
             values,
             clip,
             scales,
             zero_points);
}

void int_search_scales(const Context& context,
                       const IntSpec& spec,
                       ConstFloatMatrix values,
                       std::span<const float> importance,
                       FloatMatrix scales,
                       std::span<std::int8_t> zero_points) {
  check_groups(spec, values, scales, zero_points.size());
  check_invariant(is_convertible(spec.scale_type), "scales are stored as BF16, F16 or F32");
  check_invariant(importance.empty() || importance.size() == values.cols,
                  "there must be one importance for each column");
  on_backend(context,
             reference::int_search_scales,
             cpu::int_search_scales,
             gpu::int_search_scales,
             spec,
             values,
             importance,
             scales,
             zero_points);
}

void int_quantize(const Context& context,
                  const IntSpec& spec,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  std::span<const std::int8_t> zero_points,
                  std::span<std::int8_t> codes) {
  check_groups(spec, values, scales, zero_points.size());
  check_invariant(codes.size() == values.rows * values.cols,
                  "the codes of a matrix have the wrong size");
  on_backend(context,
             reference::int_quantize,
             cpu::int_quantize,
             gpu::int_quantize,
             spec,
             values,
             scales,
             zero_points,
             codes);
}

std::optional<MatrixPosition> int_dequantize(const Context& context,
                                             std::span<const std::int8_t> codes,
                                             ConstFloatMatrix scales,
                                             std::span<const std::int8_t> zero_points,
                                             std::span<const std::uint32_t> column_groups,
                                             FloatMatrix values) {
  check_invariant(codes.size() == values.rows * values.cols,
                  "the codes of a matrix have the wrong size");
  check_invariant(scales.rows == values.rows, "there must be one row of scales for each row");
  check_invariant(zero_points.empty() || zero_points.size() == scales.rows * scales.cols,
                  "there must be one zero point for each group, or none at all");
  if (column_groups.empty()) {
    check_invariant(scales.cols == 0 ? values.cols == 0 : values.cols % scales.cols == 0,
                    "the groups of a row must be equally wide");
  } else {
    check_invariant(column_groups.size() == values.cols &&
                        *std::max_element(column_groups.begin(), column_groups.end()) < scales.cols,
                    "there must be one group for each column");
  }
  return on_backend(context,
                    reference::int_dequantize,
                    cpu::int_dequantize,
                    gpu::int_dequantize,
                    codes,
                    scales,
                    zero_points,
                    column_groups,
                    values);
}

void int_pack_columns(const Context& context,
                      const IntPacking& packing,
                      std::span<const std::int8_t> codes,
                      std::size_t rows,
                      std::size_t cols,
                      std::span<std::uint8_t> packed) {
  check_columns(packing, codes.size(), rows, cols, packed.size());
  on_backend(context,
             reference::int_pack_columns,
             cpu::int_pack_columns,
             gpu::int_pack_columns,
             packing,
             codes,
             rows,
             cols,
             packed);
}

void int_unpack_columns(const Context& context,
                        const IntPacking& packing,
                        std::span<const std::uint8_t> packed,
                        std::size_t rows,
                        std::size_t cols,
                        std::span<std::int8_t> codes) {
  check_columns(packing, codes.size(), rows, cols, packed.size());
  on_backend(context,
             reference::int_unpack_columns,
             cpu::int_unpack_columns,
             gpu::int_unpack_columns,
             packing,
             packed,
             rows,
             cols,
             codes);
}

void int_pack_rows(const Context& context,
                   const IntPacking& packing,
                   std::span<const std::int8_t> codes,
                   std::size_t rows,
                   std::size_t cols,
                   std::span<std::uint8_t> packed) {
  check_rows(packing, codes.size(), rows, cols, packed.size());
  on_backend(context,
             reference::int_pack_rows,
             cpu::int_pack_rows,
             gpu::int_pack_rows,
             packing,
             codes,
             rows,
             cols,
             packed);
}

void int_unpack_rows(const Context& context,
                     const IntPacking& packing,
                     std::span<const std::uint8_t> packed,
                     std::size_t rows,
                     std::size_t cols,
                     std::span<std::int8_t> codes) {
  check_rows(packing, codes.size(), rows, cols, packed.size());
  on_backend(context,
             reference::int_unpack_rows,
             cpu::int_unpack_rows,
             gpu::int_unpack_rows,
             packing,
             packed,
             rows,
             cols,
             codes);
}

void transpose_codes(std::span<const std::int8_t> codes,
                     std::size_t rows,
                     std::size_t cols,
                     std::span<std::int8_t> transposed) {
  check_invariant(codes.size() == rows * cols && transposed.size() == codes.size(),
                  "the codes of a matrix have the wrong size");
  // Of a tile, what is read and what is written are 64 cache lines each.
  constexpr std::size_t kTile = 64;
  for (std::size_t row = 0; row < rows; row += kTile) {
    for (std::size_t col = 0; col < cols; col += kTile) {
      for (std::size_t r = row; r < std::min(row + kTile, rows); ++r) {
        for (std::size_t c = col; c < std::min(col + kTile, cols); ++c) {
          transposed[c * rows + r] = codes[r * cols + c];
        }
      }
    }
  }
}

}  // namespace quantmill
