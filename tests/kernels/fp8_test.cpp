// The reference kernels of FP8 and of block maxima against literal values.

#include "kernels/fp8.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/block_grid.h"
#include "kernels/stored_scale.h"

namespace quantmill {
namespace {

using testing::ElementsAre;

constexpr Context kReference{Backend::kReference, Isa::kPlain};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Everything is usable while compiling, as a device compiler needs it.
static_assert(fp8_scale(448, DType::kF32) == 1.0F);
static_assert(num_block_rows({.rows = 128, .cols = 128, .first_row = 100}, 29) == 2);

TEST(BlockGrid, CountsCutBlocks) {
  const BlockGrid grid{.rows = 128, .cols = 128};
  EXPECT_EQ(num_block_rows(grid, 576), 5U);
  EXPECT_EQ(num_block_cols(grid, 7168), 56U);
  EXPECT_EQ(num_block_cols(grid, 7169), 57U);
  EXPECT_EQ(num_block_rows({.rows = std::numeric_limits<std::size_t>::max(), .cols = 8}, 300), 1U);
}

TEST(BlockAmax, TakesTheLargestMagnitudeOfEachBlock) {
  const std::vector<float> values{1,
                                  -2,
                                  3,  //
                                  4,
                                  0,
                                  -0.5F,
                                  0,
                                  -0.0F,
                                  7};
  std::vector<float> amax(4);
  block_amax(kReference, {values.data(), 3, 3}, {.rows = 2, .cols = 2}, {amax.data(), 2, 2});
  EXPECT_THAT(amax, ElementsAre(4, 3, 0, 7));
}

TEST(BlockAmax, OnlyRaisesAndCountsRowsFromTheLargerMatrix) {
  const std::vector<float> values{5, -1};
  std::vector<float> amax{0, 0.5F, 2};
  block_amax(kReference,
             {values.data(), 2, 1},
             {.rows = 3, .cols = 1, .first_row = 5},
             {amax.data(), 3, 1});
  EXPECT_THAT(amax, ElementsAre(0, 5, 2));
}

TEST(StoredScale, IsNeverZeroAndNeverInfinite) {
  EXPECT_EQ(stored_scale(0, DType::kF32), 0x1p-149F);
  EXPECT_EQ(stored_scale(0, DType::kBf16), 0x1p-133F);
  EXPECT_EQ(stored_scale(0x1p-140F, DType::kBf16), 0x1p-133F);
  EXPECT_EQ(stored_scale(1e-9F, DType::kF16), 0x1p-24F);
  EXPECT_EQ(stored_scale(1e6F, DType::kF16), 65504.0F);
  EXPECT_EQ(stored_scale(kInfinity, DType::kF32), std::numeric_limits<float>::max());
  EXPECT_EQ(stored_scale(std::numeric_limits<float>::max(), DType::kBf16), 0x1.fep127F);
}

TEST(StoredScale, RoundsTiesToEven) {
  EXPECT_EQ(stored_scale(0x1.01p0F, DType::kBf16), 1.0F);
  EXPECT_EQ(stored_scale(0x1.03p0F, DType::kBf16), 0x1.04p0F);
  EXPECT_EQ(stored_scale(0x1.002p0F, DType::kF16), 1.0F);
  EXPECT_EQ(stored_scale(0x1.006p0F, DType::kF16), 0x1.008p0F);
  EXPECT_EQ(stored_scale(0x1.000002p0F, DType::kF32), 0x1.000002p0F);
}

TEST(Fp8Scale, IsAmaxOver448) {
  EXPECT_EQ(fp8_scale(896, DType::kF32), 2.0F);
  EXPECT_EQ(fp8_scale(1, DType::kF32), 0x1.24924ap-9F);  // 1 / 448 rounded to float
  EXPECT_EQ(fp8_scale(1, DType::kBf16), 0x1.24p-9F);
  EXPECT_EQ(fp8_scale(0, DType::kF32), 1.0F);
  EXPECT_EQ(fp8_scale(0x1p-149F, DType::kF32), 0x1p-149F);
  EXPECT_EQ(fp8_scale(0x1p-149F, DType::kBf16), 0x1p-133F);
}

TEST(Fp8Dequantize, MultipliesEachBlockByItsScale) {
  // 1, -448, 2^-9 | 0.0625 in rows of scales {2, 0.5}; the next row of blocks has {1, 4}.
  const std::vector<std::uint8_t> codes{0x38,
                                        0xfe,
                                        0x01,  //
                                        0x38,
                                        0x80,
                                        0x18,  //
                                        0x38,
                                        0x00,
                                        0x40};
  const std::vector<float> scales{2, 0.5F, 1, 4};
  std::vector<float> values(9);
  EXPECT_EQ(
      fp8_dequantize(
          kReference, codes, {scales.data(), 2, 2}, {.rows = 2, .cols = 2}, {values.data(), 3, 3}),
      std::nullopt);
  EXPECT_THAT(values, ElementsAre(2, -896, 0x1p-10F, 2, -0.0F, 0.03125F, 1, 0, 8));
  EXPECT_TRUE(std::signbit(values[4]));
}

TEST(Fp8Dequantize, CountsBlocksFromTheLargerMatrix) {
  const std::vector<std::uint8_t> codes{0x38, 0x38, 0x38};
  const std::vector<float> scales{2, 3, 5};
  std::vector<float> values(3);
  fp8_dequantize(kReference,
                 codes,
                 {scales.data(), 3, 1},
                 {.rows = 2, .cols = 1, .first_row = 1},
                 {values.data(), 3, 1});
  EXPECT_THAT(values, ElementsAre(2, 3, 3));
}

TEST(Fp8Dequantize, RoundsTheProductOnce) {
  const std::vector<std::uint8_t> codes{0x3f};  // 1.875
  const float scale = 0x1.000002p0F;
  float value = 0;
  fp8_dequantize(kReference, codes, {&scale, 1, 1}, {}, {&value, 1, 1});
  EXPECT_EQ(value, 0x1.e00004p0F);  // 1.875 + 1.875 * 2^-23 = 0x1.e00003c
}

TEST(Fp8Dequantize, ReportsTheFirstThatIsNotFinite) {
  const auto first = [](std::vector<std::uint8_t> codes, float scale) {
    std::vector<float> values(4);
    return fp8_dequantize(
        kReference, codes, {&scale, 1, 1}, {.rows = 9, .cols = 2}, {values.data(), 2, 2});
  };
  EXPECT_EQ(first({0, 0x7f, 0xff, 0}, 1), (MatrixPosition{0, 1}));
  EXPECT_EQ(first({0, 0x7e, 0xff, 0}, 1), (MatrixPosition{1, 0}));
  EXPECT_EQ(first({0x38, 0x38, 0x38, 0x7e}, 0x1p120F), (MatrixPosition{1, 1}));
  EXPECT_EQ(first({0x38, 0x38, 0x38, 0x38}, kInfinity), (MatrixPosition{0, 0}));
  EXPECT_EQ(first({0x7e, 0xfe, 0x80, 0}, 1), std::nullopt);
}

TEST(Fp8Quantize, DividesRoundsToEvenAndSaturates) {
  //                               tie    tie     above   beyond  subnormal tie  -0
  const std::vector<float> values{34, 38, 34.01F, 2000, -1e30F, 0x1.8p-8F, -0.0F, 4};
  const float scale = 2;
  std::vector<std::uint8_t> codes(8);
  fp8_quantize(kReference, {values.data(), 1, 8}, {&scale, 1, 1}, {.rows = 1, .cols = 8}, codes);
  // 17 -> 16, 19 -> 20, 17.005 -> 18, 1.5 * 2^-9 -> 2 * 2^-9
  EXPECT_THAT(codes, ElementsAre(0x58, 0x5a, 0x59, 0x7e, 0xfe, 0x02, 0x80, 0x40));
}

TEST(Fp8Quantize, DividesAndDoesNotMultiplyByTheReciprocal) {
  // 579.5 / 61 is 9.5, a tie that goes to 10; times float(1 / 61) it is below one.
  const float value = 579.5F;
  const float scale = 61;
  ASSERT_EQ(value / scale, 9.5F);
  ASSERT_LT(value * (1 / scale), 9.5F);
  std::vector<std::uint8_t> codes(1);
  fp8_quantize(kReference, {&value, 1, 1}, {&scale, 1, 1}, {}, codes);
  EXPECT_THAT(codes, ElementsAre(0x52));
}

TEST(Fp8, WrongShapesAreOurFault) {
  std::vector<float> values(9);
  std::vector<std::uint8_t> codes(9);
  std::vector<float> scales(4);
  const ConstFloatMatrix matrix(values.data(), 3, 3);
  const ConstFloatMatrix grid_scales(scales.data(), 2, 2);
  EXPECT_THROW(fp8_quantize(kReference, matrix, grid_scales, {.rows = 2, .cols = 3}, codes), Error);
  EXPECT_THROW(fp8_quantize(kReference, matrix, grid_scales, {.rows = 1, .cols = 2}, codes), Error);
  EXPECT_THROW(
      fp8_quantize(kReference, matrix, grid_scales, {.rows = 2, .cols = 2, .first_row = 2}, codes),
      Error);
  EXPECT_THROW(fp8_quantize(kReference, matrix, grid_scales, {.rows = 0, .cols = 2}, codes), Error);
  EXPECT_THROW(
      fp8_quantize(
          kReference, matrix, grid_scales, {.rows = 2, .cols = 2}, std::span(codes).first(8)),
      Error);
  EXPECT_NO_THROW(fp8_quantize(kReference, matrix, grid_scales, {.rows = 2, .cols = 2}, codes));
}

}  // namespace
}  // namespace quantmill
