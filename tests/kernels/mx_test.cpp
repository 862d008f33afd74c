// The reference kernels of MX formats against literal values and the plain definition's vectors.

#include "kernels/mx.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/kernels/golden_tensors.h"
#include "tests/support/temporary_folder.h"

namespace quantmill {
namespace {

using test::golden;
using test::GoldenTensors;
using testing::ElementsAre;

constexpr Context kReference{Backend::kReference, Isa::kPlain};

struct Quantized {
  std::vector<std::uint8_t> packed;
  std::vector<std::uint8_t> scales;
};

Quantized quantize(const MxSpec& spec, const std::vector<float>& values, std::size_t cols) {
  const std::size_t rows = values.size() / cols;
  Quantized result{std::vector<std::uint8_t>(rows * mx_packed_bytes(spec.element, cols)),
                   std::vector<std::uint8_t>(rows * cols / kMxBlock)};
  mx_quantize(kReference, spec, {values.data(), rows, cols}, result.packed, result.scales);
  return result;
}

std::vector<float> dequantize(ElementFormat element, const Quantized& quantized, std::size_t cols) {
  const std::size_t rows = quantized.scales.size() * kMxBlock / cols;
  std::vector<float> values(rows * cols);
  mx_dequantize(
      kReference, element, quantized.packed, quantized.scales, {values.data(), rows, cols});
  return values;
}

TEST(MxQuantize, PacksE2m1LowNibbleFirst) {
  std::vector<float> values(32, 0.0F);
  values[0] = 6.0F;
  values[1] = -0.5F;
  values[31] = 1.0F;
  const Quantized result = quantize({}, values, 32);
  EXPECT_THAT(result.scales, ElementsAre(127));
  EXPECT_EQ(result.packed.at(0), 0x97);
  EXPECT_EQ(result.packed.at(15), 0x20);
}

TEST(MxQuantize, PacksFourE2m3CodesInThreeBytes) {
  std::vector<float> values(32, 0.0F);
  values[0] = 7.5F;    // 0x1f
  values[1] = 0.125F;  // 0x01
  values[2] = -1.0F;   // 0x28
  values[3] = 4.0F;    // 0x18
  const Quantized result = quantize({ElementFormat::kE2m3, ScaleRule::kFloor}, values, 32);
  ASSERT_EQ(result.packed.size(), 24U);
  EXPECT_EQ(result.packed[0], 0x5f);
  EXPECT_EQ(result.packed[1], 0x80);
  EXPECT_EQ(result.packed[2], 0x62);
}

TEST(MxQuantize, ZeroBlockHasScaleOneAndKeepsSigns) {
  std::vector<float> values(32, 0.0F);
  values[2] = -0.0F;
  const Quantized result = quantize({}, values, 32);
  EXPECT_THAT(result.scales, ElementsAre(127));
  EXPECT_EQ(result.packed[1], 0x08);
}

TEST(MxQuantize, SubnormalBlockHasTheSmallestScale) {
  const Quantized result = quantize({}, std::vector<float>(32, 0x1p-127F), 32);
  EXPECT_THAT(result.scales, ElementsAre(0));
  EXPECT_EQ(result.packed[0], 0x22);  // 1 * 2^-127
}

TEST(MxQuantize, EachBlockOfEachRowHasItsOwnScale) {
  std::vector<float> values(128, 1.0F);
  values[40] = 100.0F;
  values[70] = 0.0F;
  values[127] = 0x1p100F;
  EXPECT_THAT(quantize({}, values, 64).scales, ElementsAre(125, 131, 125, 225));
}

TEST(MxQuantize, SeedTiesAreDifferent) {
  std::vector<float> values(32, 0.75F);
  values[0] = 4.0F;
  EXPECT_EQ(quantize({}, values, 32).packed[1], 0x22);
  const MxSpec seed{ElementFormat::kE2m1, ScaleRule::kFloor, TieRule::kSeed};
  EXPECT_EQ(quantize(seed, values, 32).packed[1], 0x00);
}

TEST(MxQuantize, WrongShapesAreOurFault) {
  std::vector<float> values(48);
  std::vector<std::uint8_t> packed(24);
  std::vector<std::uint8_t> scales(1);
  EXPECT_THROW(mx_quantize(kReference, {}, {values.data(), 1, 48}, packed, scales), Error);
  EXPECT_THROW(mx_quantize(kReference, {}, {values.data(), 1, 32}, packed, scales), Error);
  const MxSpec seed{ElementFormat::kE2m3, ScaleRule::kFloor, TieRule::kSeed};
  EXPECT_THROW(mx_quantize(kReference, seed, {values.data(), 1, 32}, packed, scales), Error);
}

TEST(MxQuantize, EqualsThePlainDefinitionForEveryFormatAndRule) {
  const GoldenTensors inputs(golden("codecs/inputs.safetensors"));
  const GoldenTensors plain(golden("codecs/mx_plain.safetensors"));
  const std::vector<float> blocks = inputs.floats("mx_blocks");
  const std::pair<const char*, ElementFormat> formats[] = {{"e2m1", ElementFormat::kE2m1},
                                                           {"e2m3", ElementFormat::kE2m3},
                                                           {"e3m2", ElementFormat::kE3m2},
                                                           {"e4m3", ElementFormat::kE4m3},
                                                           {"e5m2", ElementFormat::kE5m2}};
  const std::pair<const char*, ScaleRule> rules[] = {{"floor", ScaleRule::kFloor},
                                                     {"even", ScaleRule::kEven},
                                                     {"rceil", ScaleRule::kRceil},
                                                     {"ceil", ScaleRule::kCeil}};
  for (const auto& [format_name, format] : formats) {
    for (const auto& [rule_name, rule] : rules) {
      const std::string name = std::string(format_name) + "." + rule_name;
      const Quantized got = quantize({format, rule}, blocks, 32);
      EXPECT_EQ(got.packed, plain.bytes(name + ".weight")) << name;
      EXPECT_EQ(got.scales, plain.bytes(name + ".weight_scale")) << name;
    }
  }
}

TEST(MxQuantize, EqualsThePlainDefinitionOnTheDrafter) {
  const GoldenTensors drafter(golden("dflash2-tiny/model.safetensors"));
  std::vector<std::string> names{"fc"};
  for (const char* layer : {"layers.0.", "layers.1."}) {
    for (const char* part : {"self_attn.q_proj",
                             "self_attn.k_proj",
                             "self_attn.v_proj",
                             "self_attn.o_proj",
                             "mlp.gate_proj",
                             "mlp.up_proj",
                             "mlp.down_proj"}) {
      names.push_back(std::string(layer) + part);
    }
  }
  const std::pair<const char*, ScaleRule> rules[] = {{"floor", ScaleRule::kFloor},
                                                     {"even", ScaleRule::kEven},
                                                     {"rceil", ScaleRule::kRceil},
                                                     {"ceil", ScaleRule::kCeil}};
  for (const auto& [rule_name, rule] : rules) {
    const GoldenTensors want(
        golden(std::string("seed/unfolded-") + rule_name + "/model.safetensors"));
    for (const std::string& name : names) {
      const std::size_t cols = drafter.shape(name + ".weight").at(1);
      const Quantized got =
          quantize({ElementFormat::kE2m1, rule}, drafter.floats(name + ".weight"), cols);
      EXPECT_EQ(got.packed, want.bytes(name + ".weight")) << rule_name << ' ' << name;
      EXPECT_EQ(got.scales, want.bytes(name + ".weight_scale")) << rule_name << ' ' << name;
    }
  }
}

TEST(MxDequantize, GivesLiteralValues) {
  Quantized quantized{std::vector<std::uint8_t>(16, 0), {128}};
  quantized.packed[0] = 0xf1;
  quantized.packed[1] = 0x85;
  const std::vector<float> values = dequantize(ElementFormat::kE2m1, quantized, 32);
  EXPECT_EQ(values[0], 1.0F);
  EXPECT_EQ(values[1], -12.0F);
  EXPECT_EQ(values[2], 6.0F);
  EXPECT_TRUE(values[3] == 0.0F && std::signbit(values[3]));
}

TEST(MxDequantize, TheLargestBlocksCanOverflowAndByte255IsNan) {
  Quantized quantized{std::vector<std::uint8_t>(32, 0x67), {253, 255}};
  const std::vector<float> values = dequantize(ElementFormat::kE2m1, quantized, 64);
  EXPECT_TRUE(std::isinf(values[0]));  // 6 * 2^126
  EXPECT_TRUE(std::isinf(values[1]));  // 4 * 2^126
  EXPECT_TRUE(std::isnan(values[32]));
}

TEST(MxDequantize, EqualsQuarksOwnUnpackingExceptWhereItsScaleByteDisagrees) {
  const GoldenTensors mxfp4(golden("codecs/mxfp4_quark.safetensors"));
  const GoldenTensors mxfp6(golden("codecs/mxfp6_quark.safetensors"));
  const auto check = [](const GoldenTensors& file, const std::string& name, ElementFormat format) {
    const Quantized quantized{file.bytes(name + ".weight"), file.bytes(name + ".weight_scale")};
    const std::vector<float> want = file.floats(name + ".dequantized");
    const std::vector<float> got = dequantize(format, quantized, 32);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], want[i]) << name << " element " << i;
    }
  };
  check(mxfp4, "even.f32_input", ElementFormat::kE2m1);
  check(mxfp6, "e2m3.even.f32_input", ElementFormat::kE2m3);
  check(mxfp6, "e3m2.even.f32_input", ElementFormat::kE3m2);
}

TEST(MxErrorCurve, GivesLiteralSums) {
  std::vector<float> values(64, 1.0F);
  values[3] = 0.625F;    // scale 1/4: 2.5 -> 2, error 0.125
  values[40] = 0.3125F;  // 1.25 -> 1, error 0.0625
  std::vector<float> importance(64, 1.0F);
  importance[40] = 2.0F;
  std::vector<float> candidates(128, 1.0F);
  std::fill(candidates.begin() + 64, candidates.end(), 2.0F);
  std::vector<double> sums{0, 1, 2, 3};  // [blocks, candidates]
  mx_error_curve(
      kReference, {}, {values.data(), 1, 64}, importance, {candidates.data(), 2, 64}, sums);
  EXPECT_THAT(sums, ElementsAre(0.015625, 1.015625, 2.015625, 3.015625));
}

}  // namespace
}  // namespace quantmill
