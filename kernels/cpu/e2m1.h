#pragma once

// Private to kernels/cpu: one MXFP4 block (32 values, e2m1 elements) in vectors of W lanes, to the
// bit what codec.h says.

#include "kernels/codec.h"
#include "kernels/cpu/lanes.h"
#include "kernels/mx.h"

namespace quantmill::cpu {
namespace {

// How many vectors hold a block.
template <std::size_t W>
constexpr std::size_t kBlockVectors = kMxBlock / W;

// The largest of a block's magnitudes (as bits, sign clear) in every lane.
template <std::size_t W>
[[gnu::always_inline]] inline void block_amax(
    const typename Lanes<W>::Float (&magnitudes)[kBlockVectors<W>], typename Lanes<W>::Ints& amax) {
  using Ints = typename Lanes<W>::Ints;
  amax = (Ints)magnitudes[0];
  for (std::size_t v = 1; v < kBlockVectors<W>; ++v) {
    const Ints other = (Ints)magnitudes[v];
    amax = amax > other ? amax : other;
  }
  spread_max<W>(amax);
}

// mx_scale_byte in every lane, but 0 for a block of zeros: any scale suits one, and the caller
// stores kZeroBlockScale.
template <std::size_t W>
[[gnu::always_inline]] inline void block_scale_bytes(const typename Lanes<W>::Ints& amax,
                                                     std::uint32_t carry,
                                                     typename Lanes<W>::Ints& bytes) {
  using Ints = typename Lanes<W>::Ints;
  using Bits = typename Lanes<W>::Bits;
  constexpr std::int32_t kLargestExponent = 2;  // of e2m1
  bytes = (Ints)(((Bits)amax + carry) >> 23) - kLargestExponent;
  const Ints zero = {};
  bytes = bytes > zero ? bytes : zero;
}

// 2^(127 - byte). Bytes of finite blocks go from 0 to 253, so that it is a normal float.
template <std::size_t W>
[[gnu::always_inline]] inline void scale_reciprocals(const typename Lanes<W>::Ints& bytes,
                                                     typename Lanes<W>::Float& reciprocals) {
  reciprocals = (typename Lanes<W>::Float)((254 - bytes) << 23);
}

// 2^(byte - 127), the subnormal 2^-127 included.
template <std::size_t W>
[[gnu::always_inline]] inline void scale_values(const typename Lanes<W>::Ints& bytes,
                                                typename Lanes<W>::Float& scales) {
  using Ints = typename Lanes<W>::Ints;
  const Ints smallest = Ints{} + 0x00400000;
  const Ints normal = bytes << 23;
  scales = (typename Lanes<W>::Float)(normal > smallest ? normal : smallest);
}

// Rounds magnitudes (not negative, already divided by the scale) to e2m1 by adding and subtracting
// the number whose last place is the step there: 2^22 below 2 (step 1/2), 2^23 below 4 (1), 2^24
// from 4 (2). The addition rounds ties to even, and even multiples of the step have even codes.
template <std::size_t W>
struct RoundedE2m1 {
  typename Lanes<W>::Float magnitude;  // 0, 0.5, 1, 1.5, 2, 3, 4 or 6
  typename Lanes<W>::Ints code;        // 0 to 7
};

template <std::size_t W, bool IsSeed>
[[gnu::always_inline]] inline void round_e2m1(const typename Lanes<W>::Float& scaled,
                                              RoundedE2m1<W>& rounded) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  const Ints largest = (Ints)(Float{} + 6.0F);
  const Ints one = (Ints)(Float{} + 1.0F);
  Ints bits = (Ints)scaled;
  limit_to<W>(bits, largest);
  const Ints magic = ((bits > one ? bits : one) & 0x7f800000) + (22 << 23);
  const Float sum = (Float)bits + (Float)magic;
  rounded.magnitude = sum - (Float)magic;
  constexpr std::int32_t kMagicBelowTwo = (127 + 22) << 1;  // bits of 2^22, shifted like this
  rounded.code = ((Ints)sum - magic) + ((magic >> 22) - kMagicBelowTwo);
  if constexpr (IsSeed) {
    // A tie above an odd code: to the even code below both instead of above, 2 less.
    const Float value = (Float)bits;
    const Ints tie_to_zero = (Ints)(value == 0.75F);
    const Ints tie_to_half = (Ints)(value == 1.75F) | (Ints)(value == 3.5F);
    rounded.code -= (tie_to_zero | tie_to_half) & 2;
    const Float half = rounded.magnitude * 0.5F;
    rounded.magnitude = (Float)(((Ints)half & tie_to_half) |
                                ((Ints)rounded.magnitude & ~(tie_to_half | tie_to_zero)));
  }
}

}  // namespace
}  // namespace quantmill::cpu
