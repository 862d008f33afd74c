#pragma once

// INT4 and INT8 weights: integer codes in groups of columns of a row that share a scale, and where
// asymmetric a zero point. A value is (code - zero point) * scale. Codes and zero points are signed
// here, -8..7 or -128..127, one a byte; where a format counts from 0 (AWQ, GPTQ, uint4), 8 (128) is
// taken from both, which leaves the value as it is. How files pack them is in kernels/int4_pack.h.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "device/context.h"
#include "kernels/matrix.h"
#include "tensor/dtype.h"

namespace quantmill {

// How the scale of a symmetric group follows from its largest magnitude amax.
enum class IntScaleRule {
  kHalfRange,    // amax / 7.5 (INT8: / 127.5): compressed-tensors, Quark, GPTQ. A positive maximum
                 // lies midway between the codes 7 and 8 and becomes 7
  kLargestCode,  // amax / 7 (INT8: / 127): AutoAWQ. Nothing saturates; code -8 (-128) is not used
};

struct IntSpec {
  std::size_t bits = 4;     // 4 or 8
  std::size_t group = 128;  // columns; divides the columns of the matrix, or is all of them
  bool is_symmetric = true;
  IntScaleRule scale_rule = IntScaleRule::kHalfRange;  // of symmetric groups
  DType scale_type = DType::kBf16;  // BF16, F16 or F32: what the scales will be stored as
};

constexpr int int_smallest(std::size_t bits) {
  return -(1 << (bits - 1));
}

constexpr int int_largest(std::size_t bits) {
  return (1 << (bits - 1)) - 1;
}

// The scale of each group, and if asymmetric its zero point; each operation rounded to float once:
//   low = min(0, values) * clip, high = max(0, values) * clip
//   symmetric:   scale = stored(max(-low, high) / divisor), the divisor by the scale rule
//   asymmetric:  scale = stored((high - low) / 15) (INT8: / 255)
//                zero point = -8 - round(low / scale), ties to even, limited to -8..7 (INT8:
//                -128..)
// where stored() is stored_scale (stored_scale.h) of spec.scale_type: never 0, never infinite. A
// group of zeros has scale 1 (Quark writes 2^-23, compressed-tensors the eps of the type: all
// decode alike).
//   values: finite, [rows, cols]. clip: above 0, at most 1; less than 1 saturates the extremes.
//   scales: [rows, cols / group]. zero_points: as many, or empty if symmetric.
// Sources: calculate_qparams of compressed-tensors 0.19; pseudo_quantize_tensor of AutoAWQ 0.2.9.
void int_scales(const Context& context,
                const IntSpec& spec,
                ConstFloatMatrix values,
                float clip,
                FloatMatrix scales,
                std::span<std::int8_t> zero_points);

// What int_search_scales multiplies the range of a group by, in the order in which it tries: the
// whole range, one in which the largest positive value of a symmetric INT4 group does not saturate
// (IntScaleRule::kLargestCode), and less and less.
constexpr std::array<float, 12> kIntTriedClips = {
    1.0F, 15.0F / 14.0F, 0.95F, 0.9F, 0.85F, 0.8F, 0.75F, 0.7F, 0.65F, 0.6F, 0.55F, 0.5F};

// int_scales with a clip of its own for each group: that of kIntTriedClips whose error is least,
// the earliest on a tie. In float, each operation rounded once: e = (dequantized - value) *
// importance; e * e of the group's column c is added to lane c % 16 of 16, columns in order, the
// lanes by add_lanes (lane_sums.h).
//   importance: [cols], not negative, finite; empty: 1 everywhere. Otherwise as in int_scales.
void int_search_scales(const Context& context,
                       const IntSpec& spec,
                       ConstFloatMatrix values,
                       std::span<const float> importance,
                       FloatMatrix scales,
                       std::span<std::int8_t> zero_points);

// codes = round(value / scale) + zero point, limited to the range of spec.bits: the quotient
// rounded to float, then to the nearest integer, ties to even. values must be finite, scales
// positive. Shapes as in int_scales; codes: [rows, cols].
void int_quantize(const Context& context,
                  const IntSpec& spec,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  std::span<const std::int8_t> zero_points,
                  std::span<std::int8_t> codes);

// values = (code - zero point) * scale, rounded to float once.
//   codes: [rows, cols] of values. scales: [rows, groups]. zero_points: [rows, groups], or empty
//   for none. column_groups: the group of each column (the g_idx of GPTQ with reordered
//   activations), all below the number of groups; empty where groups are columns side by side, all
//   equally many. With it, the loop is the reference's on every backend.
// Returns the first NaN or infinity in row-major order, if any (from a scale, or a product beyond
// the largest float); `values` is filled all the same.
std::optional<MatrixPosition> int_dequantize(const Context& context,
                                             std::span<const std::int8_t> codes,
                                             ConstFloatMatrix scales,
                                             std::span<const std::int8_t> zero_points,
                                             std::span<const std::uint32_t> column_groups,
                                             FloatMatrix values);

}  // namespace quantmill
