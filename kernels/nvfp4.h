#pragma once

// NVFP4 weights: e2m1 elements in blocks of 16 along a row, an e4m3 scale for each block, and one
// float for the whole tensor (or for several that a server fuses: they must share it). Not for
// blocks of 32 with E8M0 scales, MXFP4: those are in kernels/mx.h.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "device/context.h"
#include "kernels/codec.h"
#include "kernels/matrix.h"

namespace quantmill {

constexpr std::size_t kNvfp4Block = 16;

// Which of the two conventions a file's global scale follows. A block's factor is
enum class GlobalScaleUse {
  kMultiplies,  // e4m3 scale * global, rounded to float: weight_scale_2 of ModelOpt and Quark
  kDivides,     // e4m3 scale / global, rounded to float: weight_global_scale of compressed-tensors
};

struct GlobalScale {
  float value = 1;
  GlobalScaleUse use = GlobalScaleUse::kMultiplies;
};

// The largest block of a tensor gets the e4m3 scale 448, so that its largest element is the code of
// 6: amax / 2688 if it multiplies, 2688 / amax if it divides, rounded to float, and never 0 or
// infinite. A tensor of zeros has 1. Sources: NVFP4QTensor of ModelOpt; generate_gparam of
// compressed-tensors 0.19 (for which amax is at least 2^-126).
constexpr GlobalScale nvfp4_global_scale(float amax, GlobalScaleUse use) {
  constexpr float kLargest = 448.0F * 6.0F;
  if (amax == 0) {
    return {1, use};
  }
  const float scale = use == GlobalScaleUse::kMultiplies ? amax / kLargest : kLargest / amax;
  const float smallest = std::numeric_limits<float>::denorm_min();
  const float largest = std::numeric_limits<float>::max();
  return {scale < smallest ? smallest : scale > largest ? largest : scale, use};
}

// The factor of a block whose scale byte this is; 0 for byte 0.
constexpr float nvfp4_factor(std::uint8_t scale, GlobalScale global) {
  const float decoded = decode_element(ElementFormat::kE4m3, scale);
  return global.use == GlobalScaleUse::kMultiplies ? decoded * global.value
                                                   : decoded / global.value;
}

// The scale byte of each block: e4m3 of (amax / 6) / global, or (amax / 6) * global if it divides,
// each operation rounded to float once, then to nearest, ties to even, saturating at 448, and never
// below byte 1 (2^-9), so that a small block keeps what it can. A block of zeros has byte 1 too
// (vLLM writes 0, compressed-tensors 32, ModelOpt 56: all decode alike).
//   values: finite, cols a multiple of 16. scales: rows x cols / 16. global: positive and finite.
void nvfp4_block_scales(const Context& context,
                        ConstFloatMatrix values,
                        GlobalScale global,
                        std::span<std::uint8_t> scales);

// Steps from the scale byte of nvfp4_block_scales to those that nvfp4_search_scales tries, in the
// order in which it does: factors of some 0.73 to 1.75.
constexpr std::array<int, 11> kNvfp4TriedSteps = {0, 1, -1, 2, -2, 3, -3, 4, -4, 5, 6};

// nvfp4_block_scales with the scale byte of each block that has the least error among those of
// kNvfp4TriedSteps, limited to 1..0x7e, the earliest on a tie. In float, each operation rounded
// once: e_j = (dequantized - value) * importance; e_j * e_j for j = 0..15, added by add_lanes
// (lane_sums.h).
//   importance: [cols], not negative, finite; empty: 1 everywhere. Otherwise as in
//   nvfp4_block_scales.
void nvfp4_search_scales(const Context& context,
                         ConstFloatMatrix values,
                         GlobalScale global,
                         std::span<const float> importance,
                         std::span<std::uint8_t> scales);

// codes = e2m1(value / nvfp4_factor): the quotient rounded to float, then to nearest, ties to even,
// saturating at 6; signs are kept, that of zero too. Where the factor is 0 (byte 0, or it
// underflows) every code is a zero.
//   scales: bytes 0 to 0x7e, those of nvfp4_block_scales or any others. packed: rows x cols / 2,
//   element 2i in the low nibble of byte i. Otherwise as in nvfp4_block_scales.
void nvfp4_quantize(const Context& context,
                    ConstFloatMatrix values,
                    std::span<const std::uint8_t> scales,
                    GlobalScale global,
                    std::span<std::uint8_t> packed);

// values = e2m1(code) * nvfp4_factor, rounded to float once. Shapes as in nvfp4_quantize. Returns
// the first NaN or infinity in row-major order, if any (from a scale byte 0x7f or 0xff, from the
// global scale, or a product beyond the largest float); `values` is filled all the same.
std::optional<MatrixPosition> nvfp4_dequantize(const Context& context,
                                               std::span<const std::uint8_t> packed,
                                               std::span<const std::uint8_t> scales,
                                               GlobalScale global,
                                               FloatMatrix values);

}  // namespace quantmill
