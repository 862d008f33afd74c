// The reference kernels of INT4 and INT8 groups against literal values.

#include "kernels/int4.h"

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quantmill {
namespace {

using testing::ElementsAre;

constexpr Context kReference{Backend::kReference, Isa::kPlain};

struct Groups {
  std::vector<float> scales;
  std::vector<std::int8_t> zero_points;
};

// Of one row.
Groups scales_of(const IntSpec& spec, const std::vector<float>& values, float clip = 1) {
  const std::size_t count = values.size() / spec.group;
  Groups groups{std::vector<float>(count), std::vector<std::int8_t>(spec.is_symmetric ? 0 : count)};
  int_scales(kReference,
             spec,
             {values.data(), 1, values.size()},
             clip,
             {groups.scales.data(), 1, count},
             groups.zero_points);
  return groups;
}

std::vector<std::int8_t> quantize(const IntSpec& spec,
                                  const std::vector<float>& values,
                                  const Groups& groups) {
  std::vector<std::int8_t> codes(values.size());
  int_quantize(kReference,
               spec,
               {values.data(), 1, values.size()},
               {groups.scales.data(), 1, groups.scales.size()},
               groups.zero_points,
               codes);
  return codes;
}

constexpr IntSpec symmetric(std::size_t bits, std::size_t group, IntScaleRule rule) {
  return {bits, group, true, rule, DType::kF32};
}

constexpr IntSpec asymmetric(std::size_t bits, std::size_t group) {
  return {bits, group, false, IntScaleRule::kHalfRange, DType::kF32};
}

TEST(IntScales, SymmetricDividesByHalfTheRangeOrTheLargestCode) {
  const std::vector<float> values{1, -15, 3, 0, 7, 2, -3.5F, 0};
  EXPECT_THAT(scales_of(symmetric(4, 4, IntScaleRule::kHalfRange), values).scales,
              ElementsAre(2, 7 / 7.5F));
  EXPECT_THAT(scales_of(symmetric(4, 4, IntScaleRule::kLargestCode), values).scales,
              ElementsAre(15 / 7.0F, 1));
  EXPECT_THAT(scales_of(symmetric(8, 8, IntScaleRule::kHalfRange), values).scales,
              ElementsAre(15 / 127.5F));
  EXPECT_THAT(scales_of(symmetric(8, 8, IntScaleRule::kLargestCode), values).scales,
              ElementsAre(15 / 127.0F));
}

TEST(IntScales, AsymmetricSpansFromMinimumToMaximumAndZero) {
  // -2 to 13: step 1, zero point -8 + 2. 3 to 15: spans from 0. -15 to -3: to 0.
  const std::vector<float> values{-2, 13, 3, 15, -15, -3};
  const Groups groups = scales_of(asymmetric(4, 2), values);
  EXPECT_THAT(groups.scales, ElementsAre(1, 1, 1));
  EXPECT_THAT(groups.zero_points, ElementsAre(-6, -8, 7));
  EXPECT_THAT(scales_of(asymmetric(8, 2), {-51, 204}).zero_points, ElementsAre(-77));
}

TEST(IntScales, ZeroPointRoundsTiesToEven) {
  EXPECT_THAT(scales_of(asymmetric(4, 2), {-2.5F, 12.5F}).zero_points, ElementsAre(-6));
  EXPECT_THAT(scales_of(asymmetric(4, 2), {-3.5F, 11.5F}).zero_points, ElementsAre(-4));
}

TEST(IntScales, ClipShrinksTheRange) {
  EXPECT_THAT(scales_of(symmetric(4, 2, IntScaleRule::kHalfRange), {15, -1}, 0.5F).scales,
              ElementsAre(1));
  const Groups groups = scales_of(asymmetric(4, 2), {-4, 26}, 0.5F);
  EXPECT_THAT(groups.scales, ElementsAre(1));
  EXPECT_THAT(groups.zero_points, ElementsAre(-6));
}

TEST(IntScales, AreRoundedToTheStoredType) {
  IntSpec spec = symmetric(4, 2, IntScaleRule::kHalfRange);
  spec.scale_type = DType::kBf16;
  EXPECT_THAT(scales_of(spec, {1, 0}).scales, ElementsAre(0x1.12p-3F));  // 0.13333334
  spec.scale_type = DType::kF16;
  EXPECT_THAT(scales_of(spec, {1, 0}).scales, ElementsAre(0x1.11p-3F));
  EXPECT_THAT(scales_of(spec, {1e-9F, 0}).scales, ElementsAre(0x1p-24F));
}

TEST(IntScales, GroupOfZerosHasScaleOne) {
  const Groups groups = scales_of(asymmetric(4, 2), {0, -0.0F});
  EXPECT_THAT(groups.scales, ElementsAre(1));
  EXPECT_THAT(groups.zero_points, ElementsAre(-8));
  EXPECT_THAT(quantize(asymmetric(4, 2), {0, -0.0F}, groups), ElementsAre(-8, -8));
  EXPECT_THAT(scales_of(symmetric(8, 2, IntScaleRule::kHalfRange), {0, 0}).scales, ElementsAre(1));
}

TEST(IntQuantize, RoundsTiesToEvenAndSaturates) {
  const std::vector<float> values{1, 3, -1, 14, 15, -15, -17, 1e30F};
  const IntSpec spec = symmetric(4, 8, IntScaleRule::kHalfRange);
  EXPECT_THAT(quantize(spec, values, {{2}, {}}), ElementsAre(0, 2, 0, 7, 7, -8, -8, 7));
  const IntSpec wide = symmetric(8, 8, IntScaleRule::kHalfRange);
  EXPECT_THAT(quantize(wide, {255, 257, -255, -257, 1, 3, -3, 2}, {{2}, {}}),
              ElementsAre(127, 127, -128, -128, 0, 2, -2, 1));
}

TEST(IntQuantize, AddsTheZeroPointAfterRounding) {
  // 0.5 goes to 0 and then to the zero point, whatever its parity.
  const std::vector<float> values{0.5F, 1.5F, -20, 20};
  EXPECT_THAT(quantize(asymmetric(4, 4), values, {{1}, {-5}}), ElementsAre(-5, -3, -8, 7));
  EXPECT_THAT(quantize(asymmetric(4, 4), values, {{1}, {-6}}), ElementsAre(-6, -4, -8, 7));
}

TEST(IntDequantize, IsTheDistanceFromTheZeroPointTimesTheScale) {
  const std::vector<std::int8_t> codes{-8, 7, 0, 3, 127, -128, 1, 0};
  const std::vector<float> scales{0.5F, 2, 1, 0.25F};
  const std::vector<std::int8_t> zero_points{-8, 7, -128, 1};
  std::vector<float> values(8);
  const auto dequantize = [&](std::span<const std::int8_t> zeros) {
    return int_dequantize(
        kReference, codes, {scales.data(), 2, 2}, zeros, {}, {values.data(), 2, 4});
  };
  EXPECT_EQ(dequantize(zero_points), std::nullopt);
  EXPECT_THAT(values, ElementsAre(0, 7.5F, -14, -8, 255, 0, 0, -0.25F));
  EXPECT_EQ(dequantize({}), std::nullopt);
  EXPECT_THAT(values, ElementsAre(-4, 3.5F, 0, 6, 127, -128, 0.25F, 0));
}

TEST(IntDequantize, TakesGroupsInAnyOrderOfColumns) {
  const std::vector<std::int8_t> codes{1, 1, 1, 1};
  const std::vector<float> scales{10, 20};
  const std::vector<std::int8_t> zero_points{0, -1};
  const std::vector<std::uint32_t> groups{1, 0, 0, 1};
  std::vector<float> values(4);
  for (const Context& context : {kReference, Context{Backend::kCpu, Isa::kPlain}}) {
    EXPECT_EQ(
        int_dequantize(
            context, codes, {scales.data(), 1, 2}, zero_points, groups, {values.data(), 1, 4}),
        std::nullopt);
    EXPECT_THAT(values, ElementsAre(40, 10, 10, 40));
  }
}

TEST(IntDequantize, ReportsTheFirstThatIsNotFinite) {
  const std::vector<std::int8_t> codes{1, 1, 0, 1};
  std::vector<float> scales{1, std::numeric_limits<float>::infinity()};
  std::vector<float> values(4);
  for (const Context& context : {kReference, Context{Backend::kCpu, Isa::kPlain}}) {
    EXPECT_EQ(int_dequantize(context, codes, {scales.data(), 1, 2}, {}, {}, {values.data(), 1, 4}),
              (MatrixPosition{0, 2}));
  }
}

TEST(Int, WrongShapesAreOurFault) {
  const std::vector<float> values(8);
  std::vector<float> scales(2);
  std::vector<std::int8_t> zero_points(2);
  const ConstFloatMatrix matrix(values.data(), 1, 8);
  const FloatMatrix two{scales.data(), 1, 2};
  const auto run = [&](const IntSpec& spec, float clip, std::span<std::int8_t> zeros) {
    int_scales(kReference, spec, matrix, clip, two, zeros);
  };
  EXPECT_NO_THROW(run(asymmetric(4, 4), 1, zero_points));
  EXPECT_THROW(run(asymmetric(4, 4), 1, {}), Error);
  EXPECT_THROW(run(symmetric(4, 4, IntScaleRule::kHalfRange), 1, zero_points), Error);
  EXPECT_THROW(run(asymmetric(4, 2), 1, zero_points), Error);
  EXPECT_THROW(run(asymmetric(4, 3), 1, zero_points), Error);
  EXPECT_THROW(run(asymmetric(5, 4), 1, zero_points), Error);
  EXPECT_THROW(run(asymmetric(4, 4), 0, zero_points), Error);
  EXPECT_THROW(run(asymmetric(4, 4), 1.5F, zero_points), Error);
  std::vector<float> out(8);
  const std::vector<std::int8_t> codes(8);
  const std::vector<std::uint32_t> beyond{0, 0, 0, 0, 0, 0, 0, 2};
  EXPECT_THROW(int_dequantize(kReference, codes, two, {}, beyond, {out.data(), 1, 8}), Error);
}

}  // namespace
}  // namespace quantmill
