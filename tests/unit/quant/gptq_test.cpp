#include "quant/gptq.h"

#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::FloatEq;

TEST(ErrorFeedback, MovesAColumnByHowTheOtherGoesWithIt) {
  // Diagonal 4, 1 and 0.01 of its mean, 2.5, added; beside it 0.9 of 1. What the first column loses
  // is best made good by the second one's regression on it: -h01 / h11, which enters as its
  // negative.
  std::vector<double> gram = {4, 0, 1, 1};
  const auto feedback = make_error_feedback(gram, 2, 1000);
  ASSERT_TRUE(feedback.has_value());
  EXPECT_THAT(feedback->order, ElementsAre(0, 1));
  EXPECT_THAT(feedback->factors, ElementsAre(0, 0, FloatEq(-0.9F / 1.025F), 0));
}

TEST(ErrorFeedback, LargeColumnsComeFirstEqualOnesInTheirOrder) {
  std::vector<double> gram = {1, 0, 0, 0, 5, 0, 0, 0, 1};
  EXPECT_THAT(make_error_feedback(gram, 3, 1000)->order, ElementsAre(1, 0, 2));
}

TEST(ErrorFeedback, FewTokensAreTrustedLess) {
  const auto factor = [](std::uint64_t tokens) {
    std::vector<double> gram = {2, 0, 1, 2};
    return make_error_feedback(gram, 2, tokens)->factors[2];
  };
  EXPECT_FLOAT_EQ(factor(1000), -0.9F / 2.02F);  // 0.01 of the mean, at least
  EXPECT_FLOAT_EQ(factor(20), -0.9F / 2.2F);     // 2 / 20
  EXPECT_FLOAT_EQ(factor(1), -0.9F / 4.0F);      // 1, at most
  EXPECT_FLOAT_EQ(factor(0), -0.9F / 4.0F);
}

TEST(ErrorFeedback, IsThatOfTheInversesCholeskyFactor) {
  // A A^T with A = [[2, 1, 0.5], [0, 1, 1], [0, 0, 1]] less what is added to the diagonal, and
  // beside it divided by 0.9; columns are in falling order already. A^-1 = [[0.5, -0.5, 0.25], [0,
  // 1, -1], [0, 0, 1]].
  const double trace = (5.25 + 2 + 1) / 1.01;
  const double added = 0.01 * trace / 3;
  std::vector<double> gram = {
      5.25 - added, 0, 0, 1.5 / 0.9, 2 - added, 0, 0.5 / 0.9, 1 / 0.9, 1 - added};
  const auto feedback = make_error_feedback(gram, 3, 1000000);
  ASSERT_TRUE(feedback.has_value());
  EXPECT_NEAR(feedback->factors[3], -1, 1e-6);   // of 0 on 1: -0.5 / 0.5
  EXPECT_NEAR(feedback->factors[6], 0.5, 1e-6);  // of 0 on 2: 0.25 / 0.5
  EXPECT_NEAR(feedback->factors[7], -1, 1e-6);   // of 1 on 2: -1 / 1
}

TEST(ErrorFeedback, ThereIsNoneOfWhatIsNoGramMatrix) {
  std::vector<double> zeros(4);
  EXPECT_FALSE(make_error_feedback(zeros, 2, 10).has_value());
  std::vector<double> indefinite = {1, 0, 9, 1};
  EXPECT_FALSE(make_error_feedback(indefinite, 2, 1000).has_value());
  std::vector<double> nan = {1, 0, std::numeric_limits<double>::quiet_NaN(), 1};
  EXPECT_FALSE(make_error_feedback(nan, 2, 1000).has_value());
}

}  // namespace
}  // namespace quantmill
