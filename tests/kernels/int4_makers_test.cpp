// Other programs' INT4 weights (tests/golden/codecs) against ours. Where they agree, to the byte;
// where they do not, the disagreement is stated with its count, so that a change on our side shows.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codec_float.h"
#include "kernels/int4.h"
#include "kernels/int4_pack.h"
#include "tests/kernels/golden_tensors.h"
#include "tests/support/temporary_folder.h"

namespace quantmill {
namespace {

using test::golden;
using test::GoldenTensors;

constexpr Context kReference{Backend::kReference, Isa::kPlain};
constexpr std::size_t kRows = 32;
constexpr std::size_t kCols = 256;
constexpr std::size_t kGroups = 2;
constexpr std::size_t kZeroRow = 3;

std::vector<float> inputs() {
  return GoldenTensors(golden("codecs/inputs.safetensors")).floats("int4_matrix");
}

IntSpec spec_of(DType type) {
  return {4, 128, true, IntScaleRule::kHalfRange, type};
}

std::vector<float> our_scales(const IntSpec& spec) {
  const std::vector<float> values = inputs();
  std::vector<float> scales(kRows * kGroups);
  int_scales(
      kReference, spec, {values.data(), kRows, kCols}, 1, {scales.data(), kRows, kGroups}, {});
  return scales;
}

std::vector<std::int8_t> our_codes(const IntSpec& spec, const std::vector<float>& scales) {
  const std::vector<float> values = inputs();
  std::vector<std::int8_t> codes(values.size());
  int_quantize(
      kReference, spec, {values.data(), kRows, kCols}, {scales.data(), kRows, kGroups}, {}, codes);
  return codes;
}

std::vector<float> our_values(const std::vector<std::int8_t>& codes,
                              const std::vector<float>& scales) {
  std::vector<float> values(codes.size());
  EXPECT_EQ(int_dequantize(kReference,
                           codes,
                           {scales.data(), kRows, kGroups},
                           {},
                           {},
                           {values.data(), kRows, kCols}),
            std::nullopt);
  return values;
}

std::vector<std::int8_t> as_signed(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

template <typename T>
std::size_t num_different(const std::vector<T>& a, const std::vector<T>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    count += a[i] == b.at(i) ? 0U : 1U;
  }
  return count;
}

// The maker's scales are ours but for the row of zeros, which has `of_zeros` there and 1 here.
void expect_scales(const std::vector<float>& maker, DType type, float of_zeros) {
  std::vector<float> ours = our_scales(spec_of(type));
  for (std::size_t g = 0; g < kGroups; ++g) {
    EXPECT_EQ(ours[kZeroRow * kGroups + g], 1);
    ours[kZeroRow * kGroups + g] = of_zeros;
  }
  EXPECT_EQ(maker, ours);
}

// A group's largest value lies on the tie 7.5. Quark multiplies by the reciprocal of the scale, and
// so decides other ties than a division does; with its arithmetic every code is the same.
TEST(MakersInt4, QuarkDiffersWhereAReciprocalMissesATie) {
  const GoldenTensors file(golden("codecs/int4_g128_quark.safetensors"));
  for (const auto& [name, type, expected] :
       {std::tuple<std::string, DType, std::size_t>{"bf16_input", DType::kBf16, 3},
        {"f32_input", DType::kF32, 6}}) {
    const std::vector<float> scales = file.floats(name + ".file2file.weight_scale");
    expect_scales(scales, type, 0x1p-23F);
    const std::vector<std::int8_t> codes = as_signed(file.bytes(name + ".codes"));
    EXPECT_EQ(num_different(codes, our_codes(spec_of(type), scales)), expected) << name;
    const std::vector<float> values = inputs();
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const float reciprocal = 1 / scales[i / 128];
      const float code = std::clamp(std::nearbyint(values[i] * reciprocal), -8.0F, 7.0F);
      ASSERT_EQ(codes[i], code) << name << " element " << i;
    }
    EXPECT_EQ(our_values(codes, scales), file.floats(name + ".dequantized")) << name;
  }
}

// [K, N/8], two's complement: the exporter's order is AWQ's, file2file's is sequential.
TEST(MakersInt4, QuarkPacksTransposed) {
  const GoldenTensors file(golden("codecs/int4_g128_quark.safetensors"));
  for (const std::string name : {"bf16_input", "f32_input"}) {
    const std::vector<std::int8_t> codes = as_signed(file.bytes(name + ".codes"));
    std::vector<std::int8_t> transposed(codes.size());
    transpose_codes(codes, kRows, kCols, transposed);
    for (const auto& [tensor, order] : {std::pair{".export_reorder.weight", NibbleOrder::kAwq},
                                        std::pair{".file2file.weight", NibbleOrder::kSequential}}) {
      const IntPacking packing{4, order, IntCode::kTwosComplement};
      std::vector<std::uint8_t> packed(codes.size() / 2);
      int_pack_columns(kReference, packing, transposed, kCols, kRows, packed);
      EXPECT_EQ(packed, file.bytes(name + tensor));
      std::vector<std::int8_t> back(codes.size());
      int_unpack_columns(kReference, packing, file.bytes(name + tensor), kCols, kRows, back);
      EXPECT_EQ(back, transposed);
    }
  }
}

// Scales in BF16, 2^-7 (its eps) for zeros. It divides in BF16, which moves 167 quotients across a
// tie or onto one, and multiplies in BF16 when it reads.
TEST(MakersInt4, CompressedTensorsDiffersInBf16Quotients) {
  const GoldenTensors file(golden("codecs/int4_g128_compressed_tensors.safetensors"));
  const std::vector<float> scales = file.floats("weight_scale");
  expect_scales(scales, DType::kBf16, 0x1p-7F);
  std::vector<std::int8_t> codes(kRows * kCols);
  int_unpack_columns(kReference, {}, file.bytes("weight_packed"), kRows, kCols, codes);
  EXPECT_EQ(num_different(codes, our_codes(spec_of(DType::kBf16), scales)), 167U);
  const std::vector<float> values = inputs();
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float quotient = bf16_to_float(float_to_bf16(values[i] / scales[i / 128]));
    ASSERT_EQ(codes[i], std::clamp(std::nearbyint(quotient), -8.0F, 7.0F)) << i;
  }
  std::vector<float> rounded = our_values(codes, scales);
  for (float& value : rounded) {
    value = bf16_to_float(float_to_bf16(value));
  }
  EXPECT_EQ(rounded, file.floats("dequantized"));
}

// What compressed-tensors makes asymmetric: codes, zero points and packing of 4 and of 8 bits.
struct Asymmetric {
  IntSpec spec;
  std::vector<float> scales;
  std::vector<std::int8_t> zero_points;
  std::vector<std::int8_t> codes;
  std::vector<float> values;
};

Asymmetric compressed_tensors(std::size_t bits, DType type) {
  const GoldenTensors file(golden("codecs/int_g128_asymmetric_compressed_tensors.safetensors"));
  const std::string name =
      "int" + std::to_string(bits) + (type == DType::kBf16 ? ".bf16_input." : ".f32_input.");
  Asymmetric result{{bits, 128, false, IntScaleRule::kHalfRange, type},
                    file.floats(name + "weight_scale"),
                    std::vector<std::int8_t>(kRows * kGroups),
                    std::vector<std::int8_t>(kRows * kCols),
                    file.floats(name + "dequantized")};
  const IntPacking packing{.bits = bits};
  int_unpack_rows(kReference,
                  packing,
                  file.bytes(name + "weight_zero_point"),
                  kRows,
                  kGroups,
                  result.zero_points);
  int_unpack_columns(
      kReference, packing, file.bytes(name + "weight_packed"), kRows, kCols, result.codes);
  return result;
}

struct AsymmetricCase {
  std::size_t bits;
  DType type;
  std::size_t scales;
  std::size_t zero_points;
  std::size_t codes;
};

class MakersAsymmetric : public testing::TestWithParam<AsymmetricCase> {};

// What it reads out of its own file is what we read.
TEST_P(MakersAsymmetric, CompressedTensorsStandsForTheSameValues) {
  const Asymmetric maker = compressed_tensors(GetParam().bits, GetParam().type);
  std::vector<float> values(kRows * kCols);
  EXPECT_EQ(int_dequantize(kReference,
                           maker.codes,
                           {maker.scales.data(), kRows, kGroups},
                           maker.zero_points,
                           {},
                           {values.data(), kRows, kCols}),
            std::nullopt);
  if (GetParam().type == DType::kBf16) {
    for (float& value : values) {
      value = bf16_to_float(float_to_bf16(value));
    }
  }
  EXPECT_EQ(values, maker.values);
}

// It rounds every step to the weight's dtype (the range, the quotient, the sum with the zero
// point), where we round once; it adds the zero point before it rounds to an integer, so that a tie
// goes to the even code and not to the even number of steps; and both groups of zeros have the eps
// of the dtype as scale and zero point 0.
TEST_P(MakersAsymmetric, CompressedTensorsDiffersAsStated) {
  const AsymmetricCase& expected = GetParam();
  const Asymmetric maker = compressed_tensors(expected.bits, expected.type);
  const std::vector<float> all = inputs();
  const ConstFloatMatrix input(all.data(), kRows, kCols);
  std::vector<float> scales(kRows * kGroups);
  std::vector<std::int8_t> zero_points(kRows * kGroups);
  int_scales(kReference, maker.spec, input, 1, {scales.data(), kRows, kGroups}, zero_points);
  EXPECT_EQ(num_different(scales, maker.scales), expected.scales);
  EXPECT_EQ(num_different(zero_points, maker.zero_points), expected.zero_points);
  std::vector<std::int8_t> codes(kRows * kCols);
  int_quantize(kReference,
               maker.spec,
               input,
               {maker.scales.data(), kRows, kGroups},
               maker.zero_points,
               codes);
  EXPECT_EQ(num_different(codes, maker.codes), expected.codes);

  const auto rounded = [&](float value) {
    return expected.type == DType::kBf16 ? bf16_to_float(float_to_bf16(value)) : value;
  };
  const auto smallest = static_cast<float>(int_smallest(expected.bits));
  const auto largest = static_cast<float>(int_largest(expected.bits));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto zero = static_cast<float>(maker.zero_points[i / 128]);
    const float sum = rounded(rounded(all[i] / maker.scales[i / 128]) + zero);
    ASSERT_EQ(maker.codes[i], std::clamp(std::nearbyint(sum), smallest, largest)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs,
                         MakersAsymmetric,
                         testing::Values(AsymmetricCase{4, DType::kBf16, 19, 2, 57},
                                         AsymmetricCase{4, DType::kF32, 2, 2, 10},
                                         AsymmetricCase{8, DType::kBf16, 19, 23, 986},
                                         AsymmetricCase{8, DType::kF32, 2, 2, 22}),
                         [](const auto& test) {
                           return std::to_string(test.param.bits) +
                                  (test.param.type == DType::kBf16 ? "bf16" : "f32");
                         });

}  // namespace
}  // namespace quantmill
