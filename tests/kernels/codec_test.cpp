#include "kernels/codec.h"

#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "tests/kernels/golden_tensors.h"
#include "tests/support/temporary_folder.h"

namespace quantmill {
namespace {

using test::golden;
using test::GoldenTensors;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Everything is usable while compiling, as a device compiler needs it.
static_assert(encode_element(ElementFormat::kE2m1, 6.0F) == 7);
static_assert(decode_element(ElementFormat::kE4m3, 0x7e) == 448.0F);
static_assert(mx_scale_byte(ScaleRule::kFloor, ElementFormat::kE2m1, 0x3f800000) == 125);
static_assert(float_to_bf16(1.0F) == 0x3f80);
static_assert(float_to_f16(65504.0F) == 0x7bff);

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(float_from_bits(0x3f808000)), 0x3f80);  // tie, even below
  EXPECT_EQ(float_to_bf16(float_from_bits(0x3f818000)), 0x3f82);  // tie, even above
  EXPECT_EQ(float_to_bf16(float_from_bits(0x3f808001)), 0x3f81);
  EXPECT_EQ(float_to_bf16(float_from_bits(0xbf817fff)), 0xbf81);
  EXPECT_EQ(float_to_bf16(-0.0F), 0x8000);
  EXPECT_EQ(float_to_bf16(float_from_bits(0x00008000)), 0x0000);  // subnormal tie
  EXPECT_EQ(float_to_bf16(float_from_bits(0x00018000)), 0x0002);
}

TEST(Bf16, OverflowsToInfinityAndKeepsNan) {
  EXPECT_EQ(float_to_bf16(float_from_bits(0x7f7f7fff)), 0x7f7f);
  EXPECT_EQ(float_to_bf16(float_from_bits(0x7f7f8000)), 0x7f80);
  EXPECT_EQ(float_to_bf16(-kInfinity), 0xff80);
  EXPECT_EQ(float_to_bf16(float_from_bits(0x7f800001)), 0x7fc0);
  EXPECT_EQ(float_to_bf16(float_from_bits(0xffffffff)), 0xffff);
}

TEST(Bf16, EveryPatternComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto stored = static_cast<std::uint16_t>(bits);
    const bool is_signalling = (bits & 0x7fffU) > 0x7f80U && (bits & 0x40U) == 0;
    ASSERT_EQ(float_to_bf16(bf16_to_float(stored)), is_signalling ? stored | 0x40U : stored);
  }
}

TEST(F16, DecodesKnownValues) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0F);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0F);
  EXPECT_EQ(f16_to_float(0x0400), 0x1p-14F);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24F);
  EXPECT_EQ(f16_to_float(0x83ff), -1023 * 0x1p-24F);
  EXPECT_EQ(float_bits(f16_to_float(0x8000)), 0x80000000U);
  EXPECT_EQ(f16_to_float(0xfc00), -kInfinity);
  EXPECT_TRUE(std::isnan(f16_to_float(0x7c01)));
}

TEST(F16, RoundsToNearestEven) {
  EXPECT_EQ(float_to_f16(1.0F + 0x1p-11F), 0x3c00);      // tie, even below
  EXPECT_EQ(float_to_f16(1.0F + 3 * 0x1p-11F), 0x3c02);  // tie, even above
  EXPECT_EQ(float_to_f16(65519.99F), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_f16(-65520.0F), 0xfc00);
  EXPECT_EQ(float_to_f16(0x1p-25F), 0x0000);       // half the smallest subnormal
  EXPECT_EQ(float_to_f16(-3 * 0x1p-25F), 0x8002);  // tie between subnormals
  EXPECT_EQ(float_to_f16(0x1.ffep-15F), 0x0400);   // rounds up into the normal numbers
  EXPECT_EQ(float_to_f16(kNan), 0x7e00);
}

TEST(F16, EveryPatternComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto stored = static_cast<std::uint16_t>(bits);
    const bool is_signalling = (bits & 0x7fffU) > 0x7c00U && (bits & 0x200U) == 0;
    ASSERT_EQ(float_to_f16(f16_to_float(stored)), is_signalling ? stored | 0x200U : stored);
  }
}

struct ElementCase {
  ElementFormat format;
  const char* decode_name;  // in decode_all
  const char* cast_name;    // in cast_all_bf16
  unsigned num_codes;
};

const ElementCase kElements[] = {
    {ElementFormat::kE2m1, "ml_dtypes.float4_e2m1fn", "ml_dtypes.bf16_to_float4_e2m1fn", 16},
    {ElementFormat::kE2m3, "ml_dtypes.float6_e2m3fn", "ml_dtypes.bf16_to_float6_e2m3fn", 64},
    {ElementFormat::kE3m2, "ml_dtypes.float6_e3m2fn", "ml_dtypes.bf16_to_float6_e3m2fn", 64},
    {ElementFormat::kE4m3, "ml_dtypes.float8_e4m3fn", "bf16_to_e4m3fn", 256},
    {ElementFormat::kE4m3, "torch.e4m3fn", "bf16_to_e4m3fn", 256},
    {ElementFormat::kE5m2, "ml_dtypes.float8_e5m2", "bf16_to_e5m2", 256},
    {ElementFormat::kE5m2, "torch.e5m2", "bf16_to_e5m2", 256},
};

void expect_same_float(float got, float want, const std::string& what) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << what;
  } else {
    EXPECT_EQ(float_bits(got), float_bits(want)) << what << ": " << got << " instead of " << want;
  }
}

TEST(Elements, EveryCodeDecodesAsTorchAndMlDtypesSay) {
  const GoldenTensors file(golden("codecs/decode_all.safetensors"));
  for (const ElementCase& element : kElements) {
    const std::vector<float> want = file.floats(element.decode_name);
    ASSERT_EQ(want.size(), element.num_codes);
    for (unsigned code = 0; code < element.num_codes; ++code) {
      expect_same_float(decode_element(element.format, static_cast<std::uint8_t>(code)),
                        want[code],
                        std::string(element.decode_name) + " " + std::to_string(code));
    }
  }
}

TEST(Elements, EveryScaleByteDecodesAsTorchAndMlDtypesSay) {
  const GoldenTensors file(golden("codecs/decode_all.safetensors"));
  for (const char* name : {"torch.e8m0fnu", "ml_dtypes.float8_e8m0fnu"}) {
    const std::vector<float> want = file.floats(name);
    for (unsigned byte = 0; byte < 256; ++byte) {
      expect_same_float(decode_e8m0(static_cast<std::uint8_t>(byte)), want.at(byte), name);
    }
  }
}

TEST(Elements, EveryFiniteBf16EncodesAsTorchAndMlDtypesSay) {
  const GoldenTensors file(golden("codecs/cast_all_bf16.safetensors"));
  for (const ElementCase& element : kElements) {
    const std::vector<std::uint8_t> want = file.bytes(element.cast_name);
    unsigned num_beyond = 0;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float value = bf16_to_float(static_cast<std::uint16_t>(bits));
      if (!std::isfinite(value)) {
        continue;
      }
      const std::uint8_t code = encode_element(element.format, value);
      // torch casts to e5m2 with overflow to infinity; MX elements saturate.
      if (element.format == ElementFormat::kE5m2 && std::fabs(value) >= 61440.0F) {
        ++num_beyond;
        ASSERT_EQ(code & 0x7f, 0x7b) << value;
        ASSERT_EQ(want[bits] & 0x7f, 0x7c) << value;
      } else {
        ASSERT_EQ(code, want[bits]) << element.cast_name << " of " << value;
      }
    }
    EXPECT_EQ(num_beyond, element.format == ElementFormat::kE5m2 ? 28704U : 0U);
  }
}

TEST(Elements, EveryCodeIsTheCodeOfItsValue) {
  for (const ElementCase& element : kElements) {
    for (unsigned code = 0; code < element.num_codes; ++code) {
      const float value = decode_element(element.format, static_cast<std::uint8_t>(code));
      if (std::isfinite(value)) {
        EXPECT_EQ(encode_element(element.format, value), code) << element.decode_name;
      }
    }
  }
}

TEST(Elements, InfinitySaturatesAndKeepsItsSign) {
  EXPECT_EQ(encode_element(ElementFormat::kE2m1, kInfinity), 0x07);
  EXPECT_EQ(encode_element(ElementFormat::kE2m1, -kInfinity), 0x0f);
  EXPECT_EQ(encode_element(ElementFormat::kE2m3, -kInfinity), 0x3f);
  EXPECT_EQ(encode_element(ElementFormat::kE3m2, kInfinity), 0x1f);
  EXPECT_EQ(encode_element(ElementFormat::kE4m3, -kInfinity), 0xfe);
  EXPECT_EQ(encode_element(ElementFormat::kE5m2, kInfinity), 0x7b);
}

TEST(Elements, NanIsNanWhereTheFormatHasOneAndElseTheLargest) {
  EXPECT_EQ(encode_element(ElementFormat::kE2m1, kNan), 0x07);
  EXPECT_EQ(encode_element(ElementFormat::kE2m3, kNan), 0x1f);
  EXPECT_EQ(encode_element(ElementFormat::kE3m2, -kNan), 0x3f);
  EXPECT_EQ(encode_element(ElementFormat::kE4m3, kNan), 0x7f);
  EXPECT_EQ(encode_element(ElementFormat::kE5m2, -kNan), 0xff);
}

TEST(Elements, TiesGoToTheEvenCode) {
  const float ties[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  const std::uint8_t codes[] = {0, 2, 2, 4, 4, 6, 6};
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(encode_element(ElementFormat::kE2m1, ties[i]), codes[i]) << ties[i];
    EXPECT_EQ(encode_element(ElementFormat::kE2m1, -ties[i]), codes[i] | 8) << ties[i];
  }
}

TEST(Elements, SeedTiesGoToTheEvenCodeBelow) {
  const float ties[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  const std::uint8_t codes[] = {0, 0, 2, 2, 4, 4, 6};
  for (std::size_t i = 0; i < 7; ++i) {
    const auto encode = [](float value) {
      return encode_element(ElementFormat::kE2m1, value, TieRule::kSeed);
    };
    EXPECT_EQ(encode(ties[i]), codes[i]) << ties[i];
    EXPECT_EQ(encode(-ties[i]), codes[i] | 8) << ties[i];
    EXPECT_EQ(encode(std::nextafter(ties[i], 0.0F)), i) << ties[i];
    EXPECT_EQ(encode(std::nextafter(ties[i], 9.0F)), i + 1) << ties[i];
  }
}

TEST(Elements, SeedTiesBeyondTheLargestSaturate) {
  EXPECT_EQ(encode_element(ElementFormat::kE2m1, 7.0F, TieRule::kSeed), 7);
  EXPECT_EQ(encode_element(ElementFormat::kE2m1, -7.0F, TieRule::kSeed), 15);
}

TEST(Elements, SignOfZeroAndOfUnderflowIsKept) {
  EXPECT_EQ(encode_element(ElementFormat::kE2m1, -0.0F), 8);
  EXPECT_EQ(encode_element(ElementFormat::kE2m1, -1e-30F), 8);
  EXPECT_EQ(encode_element(ElementFormat::kE2m1, -0x1p-149F), 8);
  EXPECT_EQ(encode_element(ElementFormat::kE5m2, -0.0F), 0x80);
}

unsigned scale_byte(ScaleRule rule, ElementFormat format, float amax) {
  return mx_scale_byte(rule, format, float_bits(amax));
}

TEST(ScaleByte, FollowsTheRulesForE2m1) {
  const float amax[] = {1.0F, 1.0078125F, 1.5F, 1.5078125F, 1.75F, 1.984375F, 2.0F};
  const unsigned floor[] = {125, 125, 125, 125, 125, 125, 126};
  const unsigned even[] = {125, 125, 125, 125, 126, 126, 126};
  const unsigned rceil[] = {125, 125, 125, 126, 126, 126, 126};
  const unsigned ceil[] = {125, 126, 126, 126, 126, 126, 126};
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(scale_byte(ScaleRule::kFloor, ElementFormat::kE2m1, amax[i]), floor[i]) << amax[i];
    EXPECT_EQ(scale_byte(ScaleRule::kEven, ElementFormat::kE2m1, amax[i]), even[i]) << amax[i];
    EXPECT_EQ(scale_byte(ScaleRule::kRceil, ElementFormat::kE2m1, amax[i]), rceil[i]) << amax[i];
    EXPECT_EQ(scale_byte(ScaleRule::kCeil, ElementFormat::kE2m1, amax[i]), ceil[i]) << amax[i];
  }
}

TEST(ScaleByte, RceilIsTheSmallestScaleWithoutSaturation) {
  const ElementFormat formats[] = {ElementFormat::kE2m1,
                                   ElementFormat::kE2m3,
                                   ElementFormat::kE3m2,
                                   ElementFormat::kE4m3,
                                   ElementFormat::kE5m2};
  const float largest[] = {6.0F, 7.5F, 28.0F, 448.0F, 57344.0F};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(scale_byte(ScaleRule::kRceil, formats[i], largest[i]), 127U);
    EXPECT_EQ(scale_byte(ScaleRule::kRceil, formats[i], std::nextafter(largest[i], 1e9F)), 128U);
  }
}

TEST(ScaleByte, ZeroIsOneAndSubnormalsAreTheSmallest) {
  for (const ScaleRule rule :
       {ScaleRule::kFloor, ScaleRule::kEven, ScaleRule::kRceil, ScaleRule::kCeil}) {
    EXPECT_EQ(scale_byte(rule, ElementFormat::kE2m1, 0.0F), 127U);
    EXPECT_EQ(scale_byte(rule, ElementFormat::kE2m1, 0x1p-149F), 0U);
    EXPECT_EQ(scale_byte(rule, ElementFormat::kE2m1, 0x1.fffffcp-127F), 0U);
    EXPECT_EQ(scale_byte(rule, ElementFormat::kE5m2, 0x1p-127F), 0U);
  }
}

TEST(ScaleByte, LargestFloatsNeedNoClamp) {
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(scale_byte(ScaleRule::kFloor, ElementFormat::kE2m1, largest), 252U);
  EXPECT_EQ(scale_byte(ScaleRule::kEven, ElementFormat::kE2m1, largest), 253U);
  EXPECT_EQ(scale_byte(ScaleRule::kCeil, ElementFormat::kE5m2, largest), 240U);
}

TEST(ScaleByte, ReciprocalsAreExact) {
  for (unsigned byte = 0; byte < 255; ++byte) {
    const auto scale = static_cast<std::uint8_t>(byte);
    EXPECT_EQ(decode_e8m0(scale) * decode_e8m0_reciprocal(scale), 1.0F) << byte;
  }
  EXPECT_TRUE(std::isnan(decode_e8m0_reciprocal(255)));
}

}  // namespace
}  // namespace quantmill
