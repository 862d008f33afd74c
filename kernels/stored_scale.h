#pragma once

// How a computed scale becomes one that a file can hold: constexpr functions that host and device
// compilers both take. Not for scales that are powers of two (E8M0): those are in kernels/codec.h.

#include "kernels/codec_float.h"
#include "tensor/dtype.h"

namespace quantmill {

// `scale` (not negative, not NaN) rounded to BF16, F16 or F32, ties to even, but never 0 and never
// infinite: at least the type's smallest positive value (2^-133, 2^-24, 2^-149), at most its
// largest finite one.
constexpr float stored_scale(float scale, DType dtype) {
  const auto limit = [](std::uint32_t bits, std::uint32_t largest) {
    return bits == 0 ? 1U : (bits < largest ? bits : largest);
  };
  if (dtype == DType::kBf16) {
    return bf16_to_float(static_cast<std::uint16_t>(limit(float_to_bf16(scale), 0x7f7f)));
  }
  if (dtype == DType::kF16) {
    return f16_to_float(static_cast<std::uint16_t>(limit(float_to_f16(scale), 0x7bff)));
  }
  return float_from_bits(limit(float_bits(scale), 0x7f7fffff));
}

}  // namespace quantmill
