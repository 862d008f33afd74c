#include "quant/norm_fold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantmill {
namespace {

using testing::ElementsAre;

const Context kContext{Backend::kReference, Isa::kPlain};

TEST(NormFold, PowersOfTwoAreExact) {
  const std::vector<float> weight = {1.5F, -0.75F, 3.0F};
  const std::vector<float> s = {2.0F, 0.25F, 1.0F};
  const NormFold fold = fold_norm(kContext, weight, s, false, DType::kBf16);
  EXPECT_THAT(fold.weight, ElementsAre(0.75F, -3.0F, 3.0F));
  EXPECT_EQ(fold.effective_s, s);
}

TEST(NormFold, TheEffectiveScaleIsWhatTheStoredWeightWasDividedBy) {
  // 1 / 3 in BF16 is 0.333984375 (0x3eab): the reader must be multiplied by 1 / that, 2.994152…
  const NormFold fold =
      fold_norm(kContext, std::vector<float>{1.0F}, std::vector<float>{3.0F}, false, DType::kBf16);
  EXPECT_THAT(fold.weight, ElementsAre(0.333984375F));
  EXPECT_FLOAT_EQ(fold.effective_s[0], 1.0F / 0.333984375F);
}

TEST(NormFold, APlusOneNormKeepsItsGain) {
  // gain 1 + 1 = 2, divided by 4 is 0.5, stored as -0.5.
  const NormFold fold =
      fold_norm(kContext, std::vector<float>{1.0F}, std::vector<float>{4.0F}, true, DType::kBf16);
  EXPECT_THAT(fold.weight, ElementsAre(-0.5F));
  EXPECT_THAT(fold.effective_s, ElementsAre(4.0F));
}

TEST(NormFold, AZeroGainStaysZeroAndTakesAnyScale) {
  const NormFold fold =
      fold_norm(kContext, std::vector<float>{0.0F}, std::vector<float>{3.0F}, false, DType::kBf16);
  EXPECT_THAT(fold.weight, ElementsAre(0.0F));
  EXPECT_THAT(fold.effective_s, ElementsAre(3.0F));
}

TEST(NormFold, AGainThatWouldVanishOrOverflowIsLeftAlone) {
  // 1e-7 / 100 underflows F16, 60000 / 0.1 overflows it.
  const std::vector<float> weight = {9.5367431640625e-07F, 60000.0F};
  const std::vector<float> s = {1000.0F, 0.1F};
  const NormFold fold = fold_norm(kContext, weight, s, false, DType::kF16);
  EXPECT_EQ(fold.weight, weight);
  EXPECT_THAT(fold.effective_s, ElementsAre(1.0F, 1.0F));
}

}  // namespace
}  // namespace quantmill
