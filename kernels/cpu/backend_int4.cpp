// The cpu backend of kernels/int4.h and int4_pack.h.

#include <vector>

#include "kernels/backends.h"
#include "kernels/cpu/entries.h"
#include "kernels/int_group_scale.h"

namespace quantmill::cpu {
namespace {

const std::int8_t* row_of(std::span<const std::int8_t> zero_points, std::size_t first) {
  return zero_points.empty() ? nullptr : zero_points.data() + first;
}

}  // namespace

void int_scales(Isa isa,
                const IntSpec& spec,
                ConstFloatMatrix values,
                float clip,
                FloatMatrix scales,
                std::span<std::int8_t> zero_points) {
  std::vector<float> low(scales.cols);
  std::vector<float> high(scales.cols);
  for (std::size_t r = 0; r < values.rows; ++r) {
    entries(isa).int_range(
        {values.row(r).data(), low.data(), high.data(), spec.group, scales.cols});
    for (std::size_t g = 0; g < scales.cols; ++g) {
      const IntGroupScale group = int_group_scale(spec, low[g] * clip, high[g] * clip);
      scales.row(r)[g] = group.scale;
      if (!spec.is_symmetric) {
        zero_points[r * scales.cols + g] = group.zero_point;
      }
    }
  }
}

void int_search_scales(Isa isa,
                       const IntSpec& spec,
                       ConstFloatMatrix values,
                       std::span<const float> importance,
                       FloatMatrix scales,
                       std::span<std::int8_t> zero_points) {
  std::vector<float> low(scales.cols);
  std::vector<float> high(scales.cols);
  const std::vector<float> ones(importance.empty() ? values.cols : 0, 1.0F);
  const float* const weights = importance.empty() ? ones.data() : importance.data();
  for (std::size_t r = 0; r < values.rows; ++r) {
    entries(isa).int_range(
        {values.row(r).data(), low.data(), high.data(), spec.group, scales.cols});
    for (std::size_t g = 0; g < scales.cols; ++g) {
      IntGroupScale best;
      float least = 0;
      for (std::size_t i = 0; i < kIntTriedClips.size(); ++i) {
        const float clip = kIntTriedClips[i];
        const IntGroupScale tried = int_group_scale(spec, low[g] * clip, high[g] * clip);
        const float error = entries(isa).int_error(
            {values.row(r).data() + g * spec.group,
             weights + g * spec.group,
             spec.group,
             tried.scale,
             {int_smallest(spec.bits), int_largest(spec.bits), tried.zero_point}});
        if (i == 0 || error < least) {
          least = error;
          best = tried;
        }
      }
      scales.row(r)[g] = best.scale;
      if (!spec.is_symmetric) {
        zero_points[r * scales.cols + g] = best.zero_point;
      }
    }
  }
}

void int_quantize(Isa isa,
                  const IntSpec& spec,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  std::span<const std::int8_t> zero_points,
                  std::span<std::int8_t> codes) {
  for (std::size_t r = 0; r < values.rows; ++r) {
    entries(isa).int_encode({values.row(r).data(),
                             scales.row(r).data(),
                             row_of(zero_points, r * scales.cols),
                             codes.data() + r * values.cols,
                             spec.group,
                             scales.cols,
                             {int_smallest(spec.bits), int_largest(spec.bits), 0}});
  }
}

std::optional<MatrixPosition> int_dequantize(Isa isa,
                                             std::span<const std::int8_t> codes,
                                             ConstFloatMatrix scales,
                                             std::span<const std::int8_t> zero_points,
                                             std::span<const std::uint32_t> column_groups,
                                             FloatMatrix values) {
  bool is_finite = column_groups.empty();
  for (std::size_t r = 0; is_finite && r < values.rows; ++r) {
    is_finite = entries(isa).int_decode({codes.data() + r * values.cols,
                                         scales.row(r).data(),
                                         row_of(zero_points, r * scales.cols),
                                         values.row(r).data(),
                                         scales.cols == 0 ? 0 : values.cols / scales.cols,
                                         scales.cols});
  }
  // Where something is not finite, the reference finds the place.
  return is_finite ? std::nullopt
                   : reference::int_dequantize(codes, scales, zero_points, column_groups, values);
}

void int_pack_columns(Isa isa,
                      const IntPacking& packing,
                      std::span<const std::int8_t> codes,
                      std::size_t rows,
                      std::size_t cols,
                      std::span<std::uint8_t> packed) {
  if (packing.bits != 4 || cols % 8 != 0) {
    return reference::int_pack_columns(packing, codes, rows, cols, packed);
  }
  entries(isa).pack_nibbles({codes.data(),
                             packed.data(),
                             rows * cols / 8,
                             packing.code == IntCode::kOffset,
                             packing.order == NibbleOrder::kAwq});
}

void int_unpack_columns(Isa isa,
                        const IntPacking& packing,
                        std::span<const std::uint8_t> packed,
                        std::size_t rows,
                        std::size_t cols,
                        std::span<std::int8_t> codes) {
  if (packing.bits != 4 || cols % 8 != 0) {
    return reference::int_unpack_columns(packing, packed, rows, cols, codes);
  }
  entries(isa).unpack_nibbles({packed.data(),
                               codes.data(),
                               rows * cols / 8,
                               packing.code == IntCode::kOffset,
                               packing.order == NibbleOrder::kAwq});
}

void int_pack_rows(Isa isa,
                   const IntPacking& packing,
                   std::span<const std::int8_t> codes,
                   std::size_t rows,
                   std::size_t cols,
                   std::span<std::uint8_t> packed) {
  if (packing.bits != 4 || rows % 8 != 0) {
    return reference::int_pack_rows(packing, codes, rows, cols, packed);
  }
  for (std::size_t r = 0; r < rows; r += 8) {
    entries(isa).pack_nibble_rows({codes.data() + r * cols,
                                   packed.data() + r / 8 * cols * 4,
                                   cols,
                                   packing.code == IntCode::kOffset});
  }
}

void int_unpack_rows(Isa isa,
                     const IntPacking& packing,
                     std::span<const std::uint8_t> packed,
                     std::size_t rows,
                     std::size_t cols,
                     std::span<std::int8_t> codes) {
  if (packing.bits != 4 || rows % 8 != 0) {
    return reference::int_unpack_rows(packing, packed, rows, cols, codes);
  }
  for (std::size_t r = 0; r < rows; r += 8) {
    entries(isa).unpack_nibble_rows({packed.data() + r / 8 * cols * 4,
                                     codes.data() + r * cols,
                                     cols,
                                     packing.code == IntCode::kOffset});
  }
}

}  // namespace quantmill::cpu
