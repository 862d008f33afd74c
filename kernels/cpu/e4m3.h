#pragma once

// Private to kernels/cpu: e4m3 elements in vectors of W lanes, to the bit what codec.h says.

#include "kernels/cpu/lanes.h"

namespace quantmill::cpu {
namespace {

// The values of codes 0 to 255, as bits. NaN codes give NaN with their sign.
template <std::size_t W>
[[gnu::always_inline]] inline void e4m3_to_bits(const typename Lanes<W>::Ints& codes,
                                                typename Lanes<W>::Ints& bits) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  const Ints magnitude = codes & 0x7f;
  const Ints normal = (magnitude << 20) + (120 << 23);
  // Below code 8 there is no implied one: taken away from 2^-6 * (1 + code / 8).
  const Ints subnormal = (Ints)((Float)((magnitude << 20) + (121 << 23)) - 0x1p-6F);
  const Ints is_subnormal = magnitude < 8;
  const Ints is_nan = magnitude == 0x7f;
  bits = (subnormal & is_subnormal) | (normal & ~is_subnormal);
  bits |= (is_nan & 0x7fc00000) | ((codes & 0x80) << 24);
}

// The codes of values that are not NaN, given as bits. A magnitude is rounded by adding the number
// whose last place is the step between codes there: 2^(exponent - 3), and no smaller than 2^-9.
template <std::size_t W>
[[gnu::always_inline]] inline void bits_to_e4m3(const typename Lanes<W>::Ints& bits,
                                                typename Lanes<W>::Ints& codes) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  constexpr std::int32_t kSmallest = 121 << 23;  // 2^-6, the smallest normal
  const Ints largest = (Ints)(Float{} + 448.0F);
  const Ints smallest = Ints{} + kSmallest;
  Ints magnitude = bits & 0x7fffffff;
  limit_to<W>(magnitude, largest);
  const Ints binade = (magnitude > smallest ? magnitude : smallest) & 0x7f800000;
  const Ints magic = binade + (20 << 23);
  const Float sum = (Float)magnitude + (Float)magic;
  codes = ((Ints)sum - magic) + ((binade - kSmallest) >> 20);
  codes |= (bits >> 24) & 0x80;
}

}  // namespace
}  // namespace quantmill::cpu
