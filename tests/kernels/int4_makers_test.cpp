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

}  // namespace
}  // namespace quantmill
