#pragma once

// Element and scale codecs of the MX formats, defined once: constexpr functions that host and
// device compilers both take. Not for whole matrices: those are in kernels/mx.h. Source: OCP
// Microscaling Formats (MX) Specification 1.0, section 5 (elements, E8M0) and 6.3 (conversion).

#include <cstddef>
#include <cstdint>

#include "kernels/codec_float.h"

namespace quantmill {

enum class ElementFormat { kE2m1, kE2m3, kE3m2, kE4m3, kE5m2 };

// How a block's scale exponent e follows from its largest magnitude amax = m * 2^E with 1 <= m < 2,
// where emax is the exponent of the element format's largest value `max`. Clamped to -127..127.
enum class ScaleRule {
  kFloor,  // e = E - emax (the OCP specification)
  kEven,  // one more if m >= 2 - 2^-(mantissa bits + 1): half a mantissa step added to amax carries
          // (AMD Quark)
  kRceil,  // the smallest e with amax <= max * 2^e: nothing saturates
  kCeil,   // e = E - emax, one more if m > 1
  kMse,    // of e = E - emax, one more and one less, that of the least error (mx.h); by amax alone,
           // the first of these
};

// How ties between two neighbouring codes round. kSeed is the rule of the script that `--compat
// seed` reproduces: a tie between an odd code and the next goes down to the even code below both,
// 0.75 -> 0, 1.75 -> 1, 3.5 -> 2; other ties as kEven. Only e2m1 has it.
enum class TieRule { kEven, kSeed };

// The bits of one element: sign, exponent (biased), mantissa; subnormals below exponent field 1.
struct ElementLayout {
  std::uint32_t exponent_bits;
  std::uint32_t mantissa_bits;
  int bias;
  std::uint32_t largest_exponent;  // emax, the exponent of the largest finite value
  std::uint32_t largest_code;      // the largest finite value: 6, 7.5, 28, 448, 57344
};

constexpr ElementLayout element_layout(ElementFormat format) {
  switch (format) {
    case ElementFormat::kE2m1:
      return {2, 1, 1, 2, 0x07};
    case ElementFormat::kE2m3:
      return {2, 3, 1, 2, 0x1f};
    case ElementFormat::kE3m2:
      return {3, 2, 3, 4, 0x1f};
    case ElementFormat::kE4m3:
      return {4, 3, 7, 8, 0x7e};  // 0x7f is NaN; there is no infinity
    case ElementFormat::kE5m2:
      return {5, 2, 15, 15, 0x7b};  // 0x7c is infinity, 0x7d to 0x7f NaN
  }
  return {};
}

constexpr std::size_t element_bits(ElementFormat format) {
  const ElementLayout layout = element_layout(format);
  return 1 + layout.exponent_bits + layout.mantissa_bits;
}

// The code nearest to `value`: ties by the rule, magnitudes beyond the largest value (infinity
// included) saturate, the sign is kept, that of zero too. NaN: code 0x7f with its sign in e4m3 and
// e5m2, otherwise the largest value.
constexpr std::uint8_t encode_element(ElementFormat format,
                                      float value,
                                      TieRule ties = TieRule::kEven) {
  const ElementLayout layout = element_layout(format);
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t sign = (bits >> 31) << (layout.exponent_bits + layout.mantissa_bits);
  if (magnitude >= 0x7f800000U) {
    const bool is_nan = magnitude > 0x7f800000U && element_bits(format) == 8;
    return static_cast<std::uint8_t>(sign | (is_nan ? 0x7fU : layout.largest_code));
  }
  // |value| = significand * 2^(exponent - 150).
  const std::uint32_t field = magnitude >> 23;
  const int exponent = field == 0 ? 1 : static_cast<int>(field);
  const std::uint32_t significand = (magnitude & 0x7fffffU) | (field == 0 ? 0U : 0x800000U);
  // Codes of one binade are multiples of a step; below the smallest normal the step no longer
  // shrinks.
  const int smallest = 127 + 1 - layout.bias;
  const int binade = exponent > smallest ? exponent : smallest;
  const int wanted_shift = binade - exponent + 23 - static_cast<int>(layout.mantissa_bits);
  const int shift =
      wanted_shift < 26 ? wanted_shift : 26;  // 26 already leaves less than half a step
  std::uint32_t multiple = significand >> shift;
  const std::uint32_t rest = significand & ((1U << shift) - 1U);
  const std::uint32_t half = 1U << (shift - 1);
  const std::uint32_t base = static_cast<std::uint32_t>(binade - smallest) << layout.mantissa_bits;
  if (rest == half && ties == TieRule::kSeed && base + multiple < layout.largest_code) {
    multiple -= (base + multiple) & 1U;
  } else if (rest > half || (rest == half && (multiple & 1U) != 0)) {
    ++multiple;
  }
  const std::uint32_t code = base + multiple;
  return static_cast<std::uint8_t>(sign |
                                   (code < layout.largest_code ? code : layout.largest_code));
}

// The value of a code; bits above the format's are ignored. Exact. NaN and infinity where the
// format has them.
constexpr float decode_element(ElementFormat format, std::uint8_t code) {
  const ElementLayout layout = element_layout(format);
  const std::uint32_t width = layout.exponent_bits + layout.mantissa_bits;
  const std::uint32_t magnitude = code & ((1U << width) - 1U);
  const std::uint32_t sign = ((static_cast<std::uint32_t>(code) >> width) & 1U) << 31;
  const std::uint32_t field = magnitude >> layout.mantissa_bits;
  const std::uint32_t mantissa = magnitude & ((1U << layout.mantissa_bits) - 1U);
  if (element_bits(format) == 8 && magnitude > layout.largest_code) {
    const bool is_infinity = format == ElementFormat::kE5m2 && mantissa == 0;
    return float_from_bits(sign | (is_infinity ? 0x7f800000U : 0x7fc00000U));
  }
  const int exponent = (field == 0 ? 1 : static_cast<int>(field)) - layout.bias;
  const std::uint32_t significand = mantissa | (field == 0 ? 0U : 1U << layout.mantissa_bits);
  const std::uint32_t step =
      static_cast<std::uint32_t>(127 + exponent - static_cast<int>(layout.mantissa_bits)) << 23;
  const float value = static_cast<float>(significand) * float_from_bits(step);
  return float_from_bits(sign | float_bits(value));
}

// The value of a scale byte: 2^(byte - 127), exact, subnormal 2^-127 for 0; 255 is NaN.
constexpr float decode_e8m0(std::uint8_t byte) {
  if (byte == 0) {
    return 0x1p-127F;
  }
  return float_from_bits(byte == 255 ? 0x7fc00000U : static_cast<std::uint32_t>(byte) << 23);
}

// 1 / decode_e8m0(byte), exact for bytes 0 to 254.
constexpr float decode_e8m0_reciprocal(std::uint8_t byte) {
  return decode_e8m0(static_cast<std::uint8_t>(byte == 255 ? 255 : 254 - byte));
}

// The scale byte of a block without a nonzero element. Any byte decodes alike; makers write 0, 1,
// 32, 104 or this one.
constexpr std::uint8_t kZeroBlockScale = 127;

// What a rule adds to the bits of amax so that the mantissa carries into the exponent when the rule
// wants one more.
constexpr std::uint32_t mx_scale_carry(ScaleRule rule, ElementFormat format) {
  const ElementLayout layout = element_layout(format);
  switch (rule) {
    case ScaleRule::kFloor:
    case ScaleRule::kMse:
      return 0;
    case ScaleRule::kEven:
      return 1U << (22 - layout.mantissa_bits);
    case ScaleRule::kRceil: {
      const std::uint32_t largest_mantissa =
          layout.largest_code & ((1U << layout.mantissa_bits) - 1U);
      return 0x7fffffU - (largest_mantissa << (23 - layout.mantissa_bits));
    }
    case ScaleRule::kCeil:
      return 0x7fffffU;
  }
  return 0;
}

// The scale byte (e + 127) of a block whose largest magnitude has these float bits (sign clear).
// Exponents come from bits alone. A subnormal amax has E <= -127, so that e clamps to -127 (byte 0)
// by every rule and format.
constexpr std::uint8_t mx_scale_byte(ScaleRule rule,
                                     ElementFormat format,
                                     std::uint32_t amax_bits) {
  if (amax_bits == 0) {
    return kZeroBlockScale;
  }
  const std::uint32_t field = (amax_bits + mx_scale_carry(rule, format)) >> 23;
  const std::uint32_t largest_exponent = element_layout(format).largest_exponent;
  return static_cast<std::uint8_t>(field > largest_exponent ? field - largest_exponent : 0);
}

}  // namespace quantmill
