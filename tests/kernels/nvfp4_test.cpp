// The reference kernels of NVFP4 against literal values.

#include "kernels/nvfp4.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quantmill {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr Context kReference{Backend::kReference, Isa::kPlain};
constexpr auto kMultiplies = GlobalScaleUse::kMultiplies;
constexpr auto kDivides = GlobalScaleUse::kDivides;

// Everything is usable while compiling, as a device compiler needs it.
static_assert(nvfp4_global_scale(2688, kMultiplies).value == 1.0F);
static_assert(nvfp4_factor(0x38, {4, kDivides}) == 0.25F);

TEST(Nvfp4GlobalScale, MakesTheLargestBlockScale448) {
  EXPECT_EQ(nvfp4_global_scale(1, kMultiplies).value, 0x1.861862p-12F);  // 1 / 2688
  EXPECT_EQ(nvfp4_global_scale(1, kDivides).value, 2688.0F);
  EXPECT_EQ(nvfp4_global_scale(0.5F, kDivides).value, 5376.0F);
  EXPECT_EQ(nvfp4_global_scale(1, kDivides).use, kDivides);
}

TEST(Nvfp4GlobalScale, IsNeverZeroNorInfinite) {
  EXPECT_EQ(nvfp4_global_scale(0, kMultiplies).value, 1.0F);
  EXPECT_EQ(nvfp4_global_scale(0, kDivides).value, 1.0F);
  EXPECT_EQ(nvfp4_global_scale(0x1p-140F, kMultiplies).value, 0x1p-149F);
  EXPECT_EQ(nvfp4_global_scale(0x1p-140F, kDivides).value, std::numeric_limits<float>::max());
}

TEST(Nvfp4Factor, MultipliesOrDivides) {
  EXPECT_EQ(nvfp4_factor(0x7e, {0.5F, kMultiplies}), 224.0F);
  EXPECT_EQ(nvfp4_factor(0x7e, {0.5F, kDivides}), 896.0F);
  EXPECT_EQ(nvfp4_factor(0x01, {1, kMultiplies}), 0x1p-9F);
  EXPECT_EQ(nvfp4_factor(0, {3, kDivides}), 0.0F);
}

std::vector<std::uint8_t> block_scales(const std::vector<float>& values, GlobalScale global) {
  std::vector<std::uint8_t> scales(values.size() / 16);
  nvfp4_block_scales(kReference, {values.data(), 1, values.size()}, global, scales);
  return scales;
}

std::vector<float> block(float largest) {
  std::vector<float> values(16);
  values[5] = -largest;
  values[6] = largest / 2;
  return values;
}

TEST(Nvfp4BlockScales, AreASixthOfTheLargestInUnitsOfTheGlobalScale) {
  EXPECT_THAT(block_scales(block(6), {1, kMultiplies}), ElementsAre(0x38));
  EXPECT_THAT(block_scales(block(6), {2, kMultiplies}), ElementsAre(0x30));
  EXPECT_THAT(block_scales(block(6), {2, kDivides}), ElementsAre(0x40));
  EXPECT_THAT(block_scales(block(2688), {1, kDivides}), ElementsAre(0x7e));
  EXPECT_THAT(block_scales(block(1e20F), {1, kDivides}), ElementsAre(0x7e));  // saturates
  // 1.0625 lies midway between 1 and 1.125, 1.1875 between 1.125 and 1.25.
  EXPECT_THAT(block_scales(block(6.375F), {1, kDivides}), ElementsAre(0x38));
  EXPECT_THAT(block_scales(block(7.125F), {1, kDivides}), ElementsAre(0x3a));
}

TEST(Nvfp4BlockScales, OfTinyBlocksAndZerosAreTheSmallest) {
  EXPECT_THAT(block_scales(block(6 * 0x1p-9F), {1, kDivides}), ElementsAre(1));
  EXPECT_THAT(block_scales(block(6 * 0x1p-12F), {1, kDivides}), ElementsAre(1));
  EXPECT_THAT(block_scales(block(0x1p-149F), {1, kMultiplies}), ElementsAre(1));
  EXPECT_THAT(block_scales(block(0), {1, kMultiplies}), ElementsAre(1));
}

TEST(Nvfp4BlockScales, EachBlockHasItsOwn) {
  std::vector<float> values = block(6);
  const std::vector<float> second = block(12);
  values.insert(values.end(), second.begin(), second.end());
  EXPECT_THAT(block_scales(values, {1, kMultiplies}), ElementsAre(0x38, 0x40));
}

std::vector<std::uint8_t> quantize(const std::vector<float>& values,
                                   const std::vector<std::uint8_t>& scales,
                                   GlobalScale global) {
  std::vector<std::uint8_t> packed(values.size() / 2);
  nvfp4_quantize(kReference, {values.data(), 1, values.size()}, scales, global, packed);
  return packed;
}

TEST(Nvfp4Quantize, PacksLowNibbleFirstAndRoundsTiesToEven) {
  //                         1    -1.5  tie   tie   max   beyond -0     below half
  std::vector<float> values{2,
                            -3,
                            0.5F,
                            1.5F,
                            12,
                            -100,
                            -0.0F,
                            0.49F,  //
                            0,
                            0,
                            0,
                            0,
                            0,
                            0,
                            0,
                            8};
  EXPECT_THAT(quantize(values, {0x40}, {1, kMultiplies}),
              ElementsAre(0xb2, 0x20, 0xf7, 0x08, 0, 0, 0, 0x60));
  EXPECT_THAT(quantize(values, {0x38}, {2, kMultiplies}),
              ElementsAre(0xb2, 0x20, 0xf7, 0x08, 0, 0, 0, 0x60));
  EXPECT_THAT(quantize(values, {0x38}, {0.5F, kDivides}),
              ElementsAre(0xb2, 0x20, 0xf7, 0x08, 0, 0, 0, 0x60));
}

TEST(Nvfp4Quantize, ATinyBlockKeepsWhatItCan) {
  // 3 * 2^-9 / 2 is amax / 6 = 2^-11 and would round to a scale of 0.
  const std::vector<float> values = block(0x1.8p-9F);
  const GlobalScale global{1, kMultiplies};
  const std::vector<std::uint8_t> scales = block_scales(values, global);
  EXPECT_THAT(scales, ElementsAre(1));
  const std::vector<std::uint8_t> packed = quantize(values, scales, global);
  EXPECT_EQ(packed[2] >> 4, 8 | 3);  // -1.5
  EXPECT_EQ(packed[3] & 15, 2);      // 0.75 is a tie: 1
}

TEST(Nvfp4Quantize, AZeroFactorGivesZerosWithTheirSigns) {
  const std::vector<float> values = block(6);
  EXPECT_EQ(quantize(values, {0}, {1, kMultiplies})[2], 0x80);
  EXPECT_EQ(quantize(values, {1}, {0x1p-149F, kMultiplies})[2], 0x80);  // 2^-158 is 0
}

TEST(Nvfp4Dequantize, MultipliesByTheBlocksFactor) {
  std::vector<std::uint8_t> packed(16);
  packed[0] = 0x97;
  packed[8] = 0x21;
  const std::vector<std::uint8_t> scales{0x38, 0xc0};  // 1 and -2
  std::vector<float> values(32);
  const auto run = [&](GlobalScale global) {
    return nvfp4_dequantize(kReference, packed, scales, global, {values.data(), 1, 32});
  };
  EXPECT_EQ(run({0.5F, kMultiplies}), std::nullopt);
  EXPECT_THAT(std::vector<float>(values.begin(), values.begin() + 3), ElementsAre(3, -0.25F, 0));
  EXPECT_THAT(std::vector<float>(values.begin() + 16, values.begin() + 18), ElementsAre(-0.5F, -1));
  EXPECT_EQ(run({0.5F, kDivides}), std::nullopt);
  EXPECT_THAT(std::vector<float>(values.begin(), values.begin() + 2), ElementsAre(12, -1));
}

TEST(Nvfp4Dequantize, AScaleOfZeroGivesZeros) {
  const std::vector<std::uint8_t> packed(8, 0x77);
  std::vector<float> values(16, 1.0F);
  EXPECT_EQ(
      nvfp4_dequantize(
          kReference, packed, std::vector<std::uint8_t>{0}, {9, kDivides}, {values.data(), 1, 16}),
      std::nullopt);
  EXPECT_THAT(values, Each(0.0F));
}

TEST(Nvfp4Dequantize, ReportsTheFirstThatIsNotFinite) {
  const std::vector<std::uint8_t> packed(16, 0x22);
  std::vector<float> values(32);
  const auto first = [&](std::vector<std::uint8_t> scales, GlobalScale global) {
    return nvfp4_dequantize(kReference, packed, scales, global, {values.data(), 2, 16});
  };
  EXPECT_EQ(first({0x38, 0x7f}, {1, kDivides}), (MatrixPosition{1, 0}));
  EXPECT_EQ(first({0x38, 0x38}, {0, kDivides}), (MatrixPosition{0, 0}));
  EXPECT_EQ(first({0x00, 0x7e}, {0x1p-120F, kDivides}), (MatrixPosition{1, 0}));
  EXPECT_EQ(first({0x38, 0x38}, {std::nanf(""), kMultiplies}), (MatrixPosition{0, 0}));
}

TEST(Nvfp4, WrongShapesAreOurFault) {
  const std::vector<float> values(32);
  std::vector<std::uint8_t> scales(2);
  std::vector<std::uint8_t> packed(16);
  const ConstFloatMatrix matrix(values.data(), 1, 32);
  EXPECT_NO_THROW(nvfp4_quantize(kReference, matrix, scales, {}, packed));
  EXPECT_THROW(nvfp4_quantize(kReference, {values.data(), 1, 24}, scales, {}, packed), Error);
  EXPECT_THROW(nvfp4_quantize(kReference, matrix, std::span(scales).first(1), {}, packed), Error);
  EXPECT_THROW(nvfp4_quantize(kReference, matrix, scales, {}, std::span(packed).first(8)), Error);
  EXPECT_THROW(nvfp4_block_scales(kReference, matrix, {0, kDivides}, scales), Error);
  EXPECT_THROW(nvfp4_block_scales(kReference, matrix, {std::nanf(""), kDivides}, scales), Error);
}

}  // namespace
}  // namespace quantmill
