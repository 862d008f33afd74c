// Scales that are searched: values by hand, the choice against every other one, and every
// instruction set of the cpu backend against the reference, to the byte.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

#include "kernels/int4.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"
#include "tests/kernels/random_matrix.h"

namespace quantmill {
namespace {

using test::Content;
using test::expect_same_floats;
using test::fill;
using test::kContents;
using test::kSeed;
using test::Matrix;
using testing::ElementsAre;

constexpr Context kReference{Backend::kReference, Isa::kPlain};
constexpr ElementFormat kElements[] = {ElementFormat::kE2m1,
                                       ElementFormat::kE2m3,
                                       ElementFormat::kE3m2,
                                       ElementFormat::kE4m3,
                                       ElementFormat::kE5m2};

struct Quantized {
  std::vector<std::uint8_t> packed;
  std::vector<std::uint8_t> scales;

  friend bool operator==(const Quantized&, const Quantized&) = default;
};

Quantized mx(const Context& context,
             const MxSpec& spec,
             ConstFloatMatrix values,
             std::span<const float> importance) {
  Quantized result{
      std::vector<std::uint8_t>(values.rows * mx_packed_bytes(spec.element, values.cols)),
      std::vector<std::uint8_t>(values.rows * values.cols / kMxBlock)};
  mx_quantize(context, spec, values, result.packed, result.scales, importance);
  return result;
}

std::vector<std::uint8_t> nvfp4(const Context& context,
                                ConstFloatMatrix values,
                                GlobalScale global,
                                std::span<const float> importance) {
  std::vector<std::uint8_t> scales(values.rows * values.cols / kNvfp4Block);
  nvfp4_search_scales(context, values, global, importance, scales);
  return scales;
}

struct Groups {
  std::vector<float> scales;
  std::vector<std::int8_t> zero_points;
};

Groups integers(const Context& context,
                const IntSpec& spec,
                ConstFloatMatrix values,
                std::span<const float> importance) {
  const std::size_t cols = values.cols / spec.group;
  Groups groups{std::vector<float>(values.rows * cols),
                std::vector<std::int8_t>(spec.is_symmetric ? 0 : values.rows * cols)};
  int_search_scales(context,
                    spec,
                    values,
                    importance,
                    {groups.scales.data(), values.rows, cols},
                    groups.zero_points);
  return groups;
}

// Some columns of no importance at all.
std::vector<float> random_importance(std::size_t cols, std::mt19937& random) {
  std::vector<float> importance(cols);
  for (float& value : importance) {
    value = random() % 8 == 0 ? 0 : std::exp(std::normal_distribution<float>(0, 1)(random));
  }
  return importance;
}

constexpr MxSpec kMseE2m1{ElementFormat::kE2m1, ScaleRule::kMse};

std::vector<std::uint8_t> mx_scales(float first, float others, float first_importance) {
  std::vector<float> values(32, others);
  std::vector<float> importance(32, 1);
  values[0] = first;
  importance[0] = first_importance;
  return mx(kReference, kMseE2m1, {values.data(), 1, 32}, importance).scales;
}

TEST(MxSearch, TakesTheExponentOfLeastError) {
  // At exponent 0, 7 becomes 6, at 1 it becomes 8: a tie, which the first keeps.
  EXPECT_THAT(mx_scales(7, 0, 1), ElementsAre(127));
  // 7.5 becomes 6, or 8.
  EXPECT_THAT(mx_scales(7.5F, 0, 1), ElementsAre(128));
  // At 0, 5 becomes 4 and each 0.25 becomes 0: 1 + 31 / 16. At -1 the others are kept, and 5
  // becomes 3: 4.
  EXPECT_THAT(mx_scales(5, 0.25F, 1), ElementsAre(127));
  // Half as important, 5 counts a quarter: 0.25 + 31 / 16 against 1.
  EXPECT_THAT(mx_scales(5, 0.25F, 0.5F), ElementsAre(126));
}

TEST(MxSearch, WithoutImportanceColumnsCountAlike) {
  std::vector<float> values(64, 0.25F);
  values[0] = 5;
  values[32] = 7.5F;
  const std::vector<float> ones(64, 1);
  const ConstFloatMatrix matrix(values.data(), 1, 64);
  EXPECT_THAT(mx(kReference, kMseE2m1, matrix, {}).scales, ElementsAre(127, 128));
  EXPECT_EQ(mx(kReference, kMseE2m1, matrix, {}), mx(kReference, kMseE2m1, matrix, ones));
}

TEST(MxSearch, BlocksWithoutErrorKeepTheFirstExponent) {
  EXPECT_THAT(mx_scales(0, 0, 1), ElementsAre(kZeroBlockScale));
  EXPECT_THAT(mx_scales(4, 0, 1), ElementsAre(127));
  EXPECT_THAT(mx_scales(7.5F, 0, 0), ElementsAre(127));  // of no importance
}

TEST(MxSearch, ALargestValueThatWouldOverflowIsNotTried) {
  // 1.9 * 2^127: at exponent 126 it would become 4 * 2^126.
  EXPECT_THAT(mx_scales(0x1.e66666p127F, 0, 1), ElementsAre(252));
  EXPECT_THAT(mx_scales(0x1.e66666p127F, 0, 0), ElementsAre(252));
}

TEST(MxSearch, ImportanceIsOfThisRuleOnlyAndOneAColumn) {
  const std::vector<float> values(32, 1);
  const ConstFloatMatrix matrix(values.data(), 1, 32);
  EXPECT_THROW(mx(kReference, {}, matrix, values), Error);
  EXPECT_THROW(mx(kReference, kMseE2m1, matrix, std::span(values).first(31)), Error);
  const MxSpec seed{ElementFormat::kE2m1, ScaleRule::kMse, TieRule::kSeed};
  EXPECT_THROW(mx(kReference, seed, matrix, values), Error);
}

// The error of a block in double, by the public decoder.
double mx_error(ElementFormat element,
                const float* values,
                const std::uint8_t* packed,
                std::uint8_t scale,
                const float* importance) {
  std::vector<float> got(32);
  mx_dequantize(kReference,
                element,
                {packed, mx_packed_bytes(element, 32)},
                {&scale, 1},
                {got.data(), 1, 32});
  double sum = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    sum += std::pow((double{got[i]} - double{values[i]}) * double{importance[i]}, 2);
  }
  return sum;
}

TEST(MxSearch, NoFixedRuleIsBetterOnAnyBlock) {
  std::mt19937 random(kSeed);
  Matrix matrix(64, 96);
  fill(matrix, Content::kOrdinary, random);
  const std::vector<float> importance = random_importance(96, random);
  for (const ElementFormat element : kElements) {
    const Quantized best = mx(kReference, {element, ScaleRule::kMse}, matrix.view(), importance);
    const std::size_t bytes = mx_packed_bytes(element, 32);
    std::size_t better = 0;
    for (const ScaleRule rule :
         {ScaleRule::kFloor, ScaleRule::kEven, ScaleRule::kRceil, ScaleRule::kCeil}) {
      const Quantized other = mx(kReference, {element, rule}, matrix.view(), {});
      for (std::size_t block = 0; block < best.scales.size(); ++block) {
        const float* const values = matrix.all().data() + block * 32;
        const float* const weights = importance.data() + block % 3 * 32;
        const double least =
            mx_error(element, values, &best.packed[block * bytes], best.scales[block], weights);
        const double error =
            mx_error(element, values, &other.packed[block * bytes], other.scales[block], weights);
        ASSERT_LE(least, error * (1 + 1e-5)) << block;
        better += least < error * (1 - 1e-5) ? 1 : 0;
      }
    }
    EXPECT_GT(better, 0U);
  }
}

TEST(MxErrorCurve, WithSearchIsTheErrorOfWhatIsWritten) {
  std::mt19937 random(kSeed);
  Matrix matrix(7, 96);
  fill(matrix, Content::kOrdinary, random);
  const std::vector<float> importance = random_importance(96, random);
  const std::vector<float> neutral(96, 1);
  std::vector<double> sums(3);
  mx_error_curve(kReference, kMseE2m1, matrix.view(), importance, {neutral.data(), 1, 96}, sums);
  const Quantized written = mx(kReference, kMseE2m1, matrix.view(), importance);
  double want = 0;
  for (std::size_t block = 0; block < written.scales.size(); ++block) {
    want += mx_error(ElementFormat::kE2m1,
                     matrix.all().data() + block * 32,
                     &written.packed[block * 16],
                     written.scales[block],
                     importance.data() + block % 3 * 32);
  }
  EXPECT_NEAR(sums[0] + sums[1] + sums[2], want, 1e-5 * want);
}

constexpr IntSpec kGroupOf4{4, 4, true, IntScaleRule::kHalfRange, DType::kF32};

TEST(IntSearch, TakesTheClipOfLeastError) {
  // At scale 1, 7.5 becomes 7; at 15/14 it stays, and each 1 becomes 1.07.
  const std::vector<float> saturated{7.5F, 1, 1, 1};
  EXPECT_THAT(integers(kReference, kGroupOf4, {saturated.data(), 1, 4}, {}).scales,
              ElementsAre(7.5F * (15.0F / 14.0F) / 7.5F));
  // If 15 does not matter, half of its range keeps the others as they are.
  const std::vector<float> outlier{15, 1, -1, 1};
  const std::vector<float> importance{0, 1, 1, 1};
  EXPECT_THAT(integers(kReference, kGroupOf4, {outlier.data(), 1, 4}, importance).scales,
              ElementsAre(1.0F));
}

TEST(IntSearch, GroupsWithoutErrorKeepTheirRange) {
  const std::vector<float> zeros(4);
  EXPECT_THAT(integers(kReference, kGroupOf4, {zeros.data(), 1, 4}, {}).scales, ElementsAre(1.0F));
  const std::vector<float> exact{-7.5F, 1, 2, 3};
  const std::vector<float> unimportant(4);
  EXPECT_THAT(integers(kReference, kGroupOf4, {exact.data(), 1, 4}, unimportant).scales,
              ElementsAre(1.0F));
}

TEST(Nvfp4Search, TakesTheScaleOfLeastError) {
  // 6 and 0.75: at scale 1 each 0.75 becomes 1, at 1.5 all are codes. e4m3 of 1.5 is 0x3c.
  std::vector<float> values(16, 0.75F);
  values[0] = 6;
  EXPECT_THAT(nvfp4(kReference, {values.data(), 1, 16}, {}, {}), ElementsAre(0x3c));
  // 4.5 and 0.75 are codes at 0.75 (0x34); the first candidate has 4.5 / 6 of scale.
  values[0] = 4.5F;
  EXPECT_THAT(nvfp4(kReference, {values.data(), 1, 16}, {}, {}), ElementsAre(0x34));
  // 5.25 at 0.875 is a code and comes first; where it does not matter, 0.75 at 0.75 does.
  values[0] = 5.25F;
  std::vector<float> importance(16, 1);
  importance[0] = 0;
  EXPECT_THAT(nvfp4(kReference, {values.data(), 1, 16}, {}, importance), ElementsAre(0x34));
}

TEST(Nvfp4Search, ZerosKeepTheSmallestScaleAndLargeOnesStayInRange) {
  std::vector<float> values(16, 0);
  EXPECT_THAT(nvfp4(kReference, {values.data(), 1, 16}, {}, {}), ElementsAre(1));
  values[0] = 2688;  // the largest scale byte already
  values[1] = 1;
  EXPECT_THAT(nvfp4(kReference, {values.data(), 1, 16}, {}, {}), ElementsAre(0x7e));
}

class SearchBackends : public testing::TestWithParam<Context> {
 protected:
  // Calls body(values, importance), of any content, with importance and without.
  template <typename Body>
  void for_each_matrix(std::vector<std::size_t> columns, Body body) {
    std::mt19937 random(kSeed);
    for (const std::size_t rows : {0UL, 1UL, 3UL, 17UL}) {
      for (const std::size_t cols : columns) {
        for (const Content content : kContents) {
          SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", content "
                                          << static_cast<int>(content) << ", seed " << kSeed);
          Matrix matrix(rows, cols);
          fill(matrix, content, random);
          body(ConstFloatMatrix(matrix.view()), random_importance(cols, random));
          body(ConstFloatMatrix(matrix.view()), std::vector<float>());
        }
      }
    }
  }

  Context backend_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Each,
                         SearchBackends,
                         testing::ValuesIn(test::contexts_of_this_machine()),
                         [](const auto& test) { return test::name_of(test.param); });

TEST_P(SearchBackends, MxGivesTheSameBytes) {
  for_each_matrix({32, 96, 2080}, [&](ConstFloatMatrix values, const auto& importance) {
    for (const ElementFormat element : kElements) {
      const MxSpec spec{element, ScaleRule::kMse};
      ASSERT_EQ(mx(backend_, spec, values, importance), mx(kReference, spec, values, importance));
    }
  });
}

TEST_P(SearchBackends, MxErrorCurveGivesTheSameBits) {
  std::mt19937 random(kSeed);
  for (const Content content : {Content::kOrdinary, Content::kTies, Content::kSparse}) {
    Matrix matrix(9, 1056);
    fill(matrix, content, random);
    const std::vector<float> importance = random_importance(1056, random);
    std::vector<float> candidates(3 * 1056, 1);
    for (std::size_t i = 1056; i < candidates.size(); ++i) {
      candidates[i] = std::exp(std::normal_distribution<float>(0, 0.7F)(random));
    }
    for (const ElementFormat element : kElements) {
      const MxSpec spec{element, ScaleRule::kMse};
      std::vector<double> got(3 * 1056 / kMxBlock);
      std::vector<double> want(got.size());
      const ConstFloatMatrix all(candidates.data(), 3, 1056);
      mx_error_curve(backend_, spec, matrix.view(), importance, all, got);
      mx_error_curve(kReference, spec, matrix.view(), importance, all, want);
      EXPECT_EQ(got, want);
    }
  }
}

TEST_P(SearchBackends, IntegersGiveTheSameScales) {
  for (const auto& [bits, group] : {std::pair{4UL, 32UL}, {4UL, 36UL}, {8UL, 144UL}}) {
    for (const bool is_symmetric : {true, false}) {
      const DType type = bits == 4 ? DType::kBf16 : DType::kF32;
      const IntSpec spec{bits, group, is_symmetric, IntScaleRule::kHalfRange, type};
      for_each_matrix({group, 3 * group}, [&](ConstFloatMatrix values, const auto& importance) {
        const Groups got = integers(backend_, spec, values, importance);
        const Groups want = integers(kReference, spec, values, importance);
        expect_same_floats(got.scales, want.scales);
        ASSERT_EQ(got.zero_points, want.zero_points);
      });
    }
  }
}

TEST_P(SearchBackends, Nvfp4GivesTheSameScales) {
  for_each_matrix({16, 48, 1040}, [&](ConstFloatMatrix values, const auto& importance) {
    for (const GlobalScale global : {GlobalScale{1, GlobalScaleUse::kMultiplies},
                                     GlobalScale{0x1.234p-13F, GlobalScaleUse::kMultiplies},
                                     GlobalScale{0x1p-149F, GlobalScaleUse::kMultiplies},
                                     GlobalScale{0x1.357p13F, GlobalScaleUse::kDivides}}) {
      ASSERT_EQ(nvfp4(backend_, values, global, importance),
                nvfp4(kReference, values, global, importance));
    }
  });
}

}  // namespace
}  // namespace quantmill
