#pragma once

// BF16 and F16 to float and back, on bits: constexpr functions that host and device compilers both
// take. Not for block formats: those are in kernels/codec.h.

#include <bit>
#include <cstdint>

namespace quantmill {

constexpr std::uint32_t float_bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

constexpr float float_from_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// Exact; a NaN keeps its payload.
constexpr float bf16_to_float(std::uint16_t stored) {
  return float_from_bits(static_cast<std::uint32_t>(stored) << 16);
}

// Rounds to nearest, ties to even; what rounds beyond the largest finite value becomes infinity.
// A NaN keeps its sign and upper payload bits and is made quiet.
constexpr std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// Exact; a NaN keeps its payload.
constexpr float f16_to_float(std::uint16_t stored) {
  const std::uint32_t sign = (stored & 0x8000U) << 16;
  const std::uint32_t exponent = (stored >> 10) & 0x1fU;
  const std::uint32_t mantissa = stored & 0x3ffU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return float_from_bits(sign | float_bits(magnitude));
  }
  const std::uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
  return float_from_bits(sign | (wide_exponent << 23) | (mantissa << 13));
}

// Rounds to nearest, ties to even; what rounds beyond the largest finite value (65504) becomes
// infinity. A NaN keeps its sign and upper payload bits and is made quiet.
constexpr std::uint16_t float_to_f16(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  }
  if (magnitude >= 0x477ff000U) {  // 65520, half a step above 65504
    return static_cast<std::uint16_t>(sign | 0x7c00U);
  }
  if (magnitude < 0x38800000U) {  // below 2^-14: a multiple of 2^-24, which the addition rounds to
    const std::uint32_t sum = float_bits(float_from_bits(magnitude) + 0.5F);
    return static_cast<std::uint16_t>(sign | (sum - 0x3f000000U));
  }
  const std::uint32_t rebased = magnitude - ((127U - 15U) << 23);
  return static_cast<std::uint16_t>(sign | ((rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13));
}

}  // namespace quantmill
