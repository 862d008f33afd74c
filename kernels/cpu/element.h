#pragma once

// Private to kernels/cpu: elements of the small float formats in vectors of W lanes, to the bit
// what codec.h says.

#include "kernels/codec.h"
#include "kernels/cpu/lanes.h"

namespace quantmill::cpu {
namespace {

// The numbers of a format that its loops are made of.
template <ElementFormat F>
struct ElementConstants {
  static constexpr ElementLayout kLayout = element_layout(F);
  static constexpr int kMantissaShift = 23 - static_cast<int>(kLayout.mantissa_bits);
  static constexpr int kWidth = static_cast<int>(kLayout.exponent_bits + kLayout.mantissa_bits);
  static constexpr std::int32_t kSignBit = 1 << kWidth;
  static constexpr int kSignShift = 31 - kWidth;
  static constexpr std::int32_t kSmallestNormal = (128 - kLayout.bias) << 23;  // as float bits
  static constexpr float kSmallestValue =
      decode_element(F, static_cast<std::uint8_t>(1U << kLayout.mantissa_bits));
  static constexpr float kLargestValue =
      decode_element(F, static_cast<std::uint8_t>(kLayout.largest_code));
};

template <std::size_t W>
struct Rounded {
  typename Lanes<W>::Float magnitude;
  typename Lanes<W>::Ints code;  // of the magnitude
};

// Rounds magnitudes (sign clear, not NaN, already divided by the scale) by adding and subtracting
// the number whose last place is the step between codes there: for e2m1 2^22 below 2 (step 1/2),
// 2^23 below 4 (1), 2^24 from 4 (2). The addition rounds ties to even, and even multiples of the
// step have even codes. IsSeed: TieRule::kSeed, of e2m1 only.
template <std::size_t W, ElementFormat F, bool IsSeed>
[[gnu::always_inline]] inline void round_element(const typename Lanes<W>::Float& scaled,
                                                 Rounded<W>& rounded) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  using Constants = ElementConstants<F>;
  const Ints largest = (Ints)(Float{} + Constants::kLargestValue);
  const Ints smallest = Ints{} + Constants::kSmallestNormal;
  Ints bits = (Ints)scaled;
  limit_to<W>(bits, largest);
  const Ints magic =
      ((bits > smallest ? bits : smallest) & 0x7f800000) + (Constants::kMantissaShift << 23);
  const Float sum = (Float)bits + (Float)magic;
  rounded.magnitude = sum - (Float)magic;
  // The magic number of the lowest binade, shifted like this one.
  constexpr std::int32_t kLowestMagic =
      (Constants::kSmallestNormal + (Constants::kMantissaShift << 23)) >> Constants::kMantissaShift;
  rounded.code = ((Ints)sum - magic) + ((magic >> Constants::kMantissaShift) - kLowestMagic);
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

// The sign of float bits where a code has it.
template <std::size_t W, ElementFormat F>
[[gnu::always_inline]] inline void place_signs(const typename Lanes<W>::Ints& bits,
                                               typename Lanes<W>::Ints& signs) {
  signs = (bits >> ElementConstants<F>::kSignShift) & ElementConstants<F>::kSignBit;
}

// The values of codes with sign, nothing above it, as float bits. NaN codes give NaN with their
// sign.
template <std::size_t W, ElementFormat F>
[[gnu::always_inline]] inline void decode_codes(const typename Lanes<W>::Ints& codes,
                                                typename Lanes<W>::Ints& bits) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  using Constants = ElementConstants<F>;
  constexpr std::int32_t kOneBinade = 1 << 23;
  const Ints magnitude = codes & (Constants::kSignBit - 1);
  const Ints shifted = magnitude << Constants::kMantissaShift;
  const Ints normal = shifted + (Constants::kSmallestNormal - kOneBinade);
  // Below the smallest normal there is no implied one: it is taken away again.
  const Float with_one = (Float)(shifted + Constants::kSmallestNormal);
  const Ints subnormal = (Ints)(with_one - Constants::kSmallestValue);
  const Ints is_subnormal = magnitude < (1 << Constants::kLayout.mantissa_bits);
  bits = (subnormal & is_subnormal) | (normal & ~is_subnormal);
  if constexpr (Constants::kWidth == 7) {
    constexpr auto kLargest = static_cast<std::int32_t>(Constants::kLayout.largest_code);
    const Ints is_special = magnitude > kLargest;
    const Ints is_infinity = magnitude == (F == ElementFormat::kE5m2 ? 0x7c : 0x80);
    bits = (bits & ~is_special) | (is_special & (0x7fc00000 ^ (is_infinity & 0x00400000)));
  }
  bits |= (codes & Constants::kSignBit) << Constants::kSignShift;
}

}  // namespace
}  // namespace quantmill::cpu
