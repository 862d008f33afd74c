// Rounding with error feedback: literal values, and every instruction set against the reference.

#include "kernels/gptq.h"

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/mx.h"
#include "tests/kernels/random_matrix.h"

namespace quantmill {
namespace {

using test::expect_same_floats;
using test::Matrix;
using testing::ElementsAre;

constexpr Context kReference{Backend::kReference, Isa::kPlain};
constexpr RoundingGrid kE2m1{};
constexpr RoundingGrid kInt4{true, {}, -8, 7};
constexpr RoundingGrid kUnsigned4{true, {}, 0, 15};

std::vector<float> round_row(const RoundingGrid& grid,
                             const ErrorFeedback& feedback,
                             const std::vector<float>& values,
                             const std::vector<float>& scales,
                             const std::vector<std::int8_t>& zero_points = {}) {
  std::vector<float> rounded(values.size());
  gptq_round(kReference,
             grid,
             feedback,
             {values.data(), 1, values.size()},
             {scales.data(), 1, scales.size()},
             zero_points,
             {rounded.data(), 1, rounded.size()});
  return rounded;
}

TEST(GptqRound, WithoutFeedbackRoundsToTheNearest) {
  const ErrorFeedback none{{0, 1, 2, 3}, std::vector<float>(16)};
  EXPECT_THAT(round_row(kE2m1, none, {0.7F, 0.75F, -2.5F, 9}, {1}), ElementsAre(0.5F, 1, -2, 6));
  EXPECT_THAT(round_row(kE2m1, none, {0.7F, 1, 5, 9}, {0.5F, 2}), ElementsAre(0.75F, 1, 4, 8));
  EXPECT_THAT(round_row(kInt4, none, {0.5F, 1.5F, -8.6F, 7.6F}, {1}), ElementsAre(0, 2, -8, 7));
  EXPECT_THAT(round_row(kUnsigned4, none, {-1, 4.4F, 1, 30}, {0.5F}, {2}),
              ElementsAre(-1, 4.5F, 1, 6.5F));
  EXPECT_THAT(round_row(kE2m1, none, {1, 2, 3, 4}, {0}), ElementsAre(0, 0, 0, 0));
}

TEST(GptqRound, MakesGoodWhatWasLost) {
  // Column 1 is rounded first; half of its loss goes to column 0.
  const ErrorFeedback feedback{{1, 0}, {0, 0, 0.5F, 0}};
  // 1.25 becomes 1 (a loss of 0.25), and 0.8 + 0.5 * -0.25 = 0.675 becomes 0.5 instead of 1.
  EXPECT_THAT(round_row(kE2m1, feedback, {0.8F, 1.25F}, {1}), ElementsAre(0.5F, 1));
  EXPECT_THAT(round_row(kE2m1, {{0, 1}, std::vector<float>(4)}, {0.8F, 1.25F}, {1}),
              ElementsAre(1, 1));
}

TEST(GptqRound, PassesOnWhatIsPassedOn) {
  // 0 moves 1 by its whole loss, and what 1 then loses moves 2.
  const ErrorFeedback feedback{{0, 1, 2}, {0, 0, 0, -1, 0, 0, 0, -1, 0}};
  EXPECT_THAT(round_row(kInt4, feedback, {0.4F, 0.4F, 0.4F}, {1}), ElementsAre(0, 1, 0));
}

TEST(GptqRound, RefusesOtherShapes) {
  const ErrorFeedback feedback{{0, 1}, std::vector<float>(4)};
  EXPECT_THROW((void)round_row(kE2m1, feedback, {1, 2, 3}, {1}), Error);
  EXPECT_THROW((void)round_row(kE2m1, feedback, {1, 2}, {1, 1, 1}), Error);
  EXPECT_THROW((void)round_row(kInt4, feedback, {1, 2}, {1}, {1, 2}), Error);
}

TEST(MxEncode, KeepsGivenScales) {
  std::vector<float> values(64, 3);
  values[1] = -100;
  std::vector<std::uint8_t> packed(32);
  mx_encode(Context{Backend::kReference, Isa::kPlain},
            ElementFormat::kE2m1,
            {values.data(), 1, 64},
            std::vector<std::uint8_t>{127, 126},
            packed);
  EXPECT_EQ(packed[0], 0xf5);   // 3 and -6
  EXPECT_EQ(packed[1], 0x55);   // 3
  EXPECT_EQ(packed[16], 0x77);  // 3 / 2^-1 = 6
}

class GptqBackends : public testing::TestWithParam<Context> {};

INSTANTIATE_TEST_SUITE_P(Each,
                         GptqBackends,
                         testing::ValuesIn(test::contexts_of_this_machine()),
                         [](const auto& test) { return test::name_of(test.param); });

TEST_P(GptqBackends, AgreeWithTheReference) {
  const Context backend = GetParam();
  std::mt19937 random(test::kSeed);
  std::normal_distribution<float> normal(0, 0.2F);
  for (const std::size_t rows : {0UL, 1UL, 15UL, 16UL, 35UL}) {
    for (const std::size_t cols : {1UL, 3UL, 32UL, 66UL, 160UL}) {
      ErrorFeedback feedback{std::vector<std::uint32_t>(cols), std::vector<float>(cols * cols)};
      std::iota(feedback.order.begin(), feedback.order.end(), 0U);
      std::shuffle(feedback.order.begin(), feedback.order.end(), random);
      for (float& factor : feedback.factors) {
        factor = normal(random);
      }
      const std::size_t groups = cols % 32 == 0 ? cols / 32 : 1;
      Matrix values(rows, cols);
      test::fill(values, test::Content::kOrdinary, random);
      Matrix scales(rows, groups);
      for (float& scale : scales.all()) {
        scale = random() % 16 == 0 ? 0 : 0.01F;
      }
      std::vector<std::int8_t> zeros(rows * groups);
      for (std::int8_t& zero : zeros) {
        zero = static_cast<std::int8_t>(random() % 16);
      }
      for (const RoundingGrid& grid :
           {kE2m1, RoundingGrid{false, ElementFormat::kE4m3}, kInt4, kUnsigned4}) {
        SCOPED_TRACE(testing::Message()
                     << rows << " x " << cols << ", integers " << grid.is_integer);
        const std::span<const std::int8_t> zero_points = grid.largest == 15
                                                             ? std::span<const std::int8_t>(zeros)
                                                             : std::span<const std::int8_t>();
        Matrix want(rows, cols);
        Matrix got(rows, cols);
        gptq_round(
            kReference, grid, feedback, values.view(), scales.view(), zero_points, want.view());
        gptq_round(backend, grid, feedback, values.view(), scales.view(), zero_points, got.view());
        ASSERT_NO_FATAL_FAILURE(expect_same_floats(got.all(), want.all()));
      }
    }
  }
}

}  // namespace
}  // namespace quantmill
