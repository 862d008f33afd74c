#include "kernels/magnitudes.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/random_matrix.h"

namespace quantmill {
namespace {

using test::bits_of;
using test::Content;
using test::fill;
using test::kSeed;
using test::Matrix;

constexpr Context kReference{Backend::kReference, Isa::kPlain};

std::vector<float> random_weights(std::size_t cols, std::mt19937& random) {
  std::vector<float> weights(cols);
  for (float& weight : weights) {
    weight = std::exp(std::normal_distribution<float>(-1, 1)(random));
  }
  return weights;
}

struct Magnitudes {
  std::vector<double> squares;
  std::vector<double> shares;
  std::vector<double> rows;
};

Magnitudes magnitudes_of(const Context& context,
                         ConstFloatMatrix values,
                         const std::vector<float>& weights) {
  Magnitudes found{std::vector<double>(values.cols, 0.5),
                   std::vector<double>(values.cols, 0.25),
                   std::vector<double>(values.rows)};
  add_magnitudes(context, values, weights, {found.squares, found.shares}, found.rows);
  return found;
}

class MagnitudeBackends : public testing::TestWithParam<Context> {
 protected:
  Context backend_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Each,
                         MagnitudeBackends,
                         testing::ValuesIn(test::contexts_of_this_machine()),
                         [](const auto& test) { return test::name_of(test.param); });

TEST_P(MagnitudeBackends, GiveTheSameBits) {
  std::mt19937 random(kSeed);
  for (const std::size_t rows : {0UL, 1UL, 3UL, 17UL}) {
    for (const std::size_t cols : {1UL, 31UL, 32UL, 50UL, 96UL, 2090UL}) {
      for (const Content content : {Content::kOrdinary, Content::kSparse, Content::kAnyFinite}) {
        Matrix matrix(rows, cols);
        fill(matrix, content, random);
        const std::vector<float> weights = random_weights(cols, random);
        const Magnitudes got = magnitudes_of(backend_, matrix.view(), weights);
        const Magnitudes want = magnitudes_of(kReference, matrix.view(), weights);
        EXPECT_EQ(bits_of(got.squares), bits_of(want.squares));
        EXPECT_EQ(bits_of(got.shares), bits_of(want.shares));
        EXPECT_EQ(bits_of(got.rows), bits_of(want.rows));
      }
    }
  }
}

TEST(Magnitudes, AreLiteralSums) {
  std::vector<float> values(2 * 34, 0);  // a block of 32 columns and one of 2
  values[0] = 2;
  values[1] = -1;
  values[32] = 0.5F;
  values[34 + 1] = 3;
  values[34 + 33] = -4;
  std::vector<float> weights(34, 1);
  weights[1] = 2;
  const Magnitudes found = magnitudes_of(kReference, {values.data(), 2, 34}, weights);
  EXPECT_EQ(found.squares[0], 0.5 + 4);
  EXPECT_EQ(found.squares[1], 0.5 + 1 + 9);
  EXPECT_EQ(found.squares[32], 0.5 + 0.25);
  EXPECT_EQ(found.shares[1], 0.25 + 0.5 + 1);
  EXPECT_EQ(found.shares[2], 0.25);
  EXPECT_EQ(found.shares[33], 0.25 + 1);
  EXPECT_EQ(found.rows, (std::vector<double>{4 + 4 + 0.25, 36 + 16}));
}

}  // namespace
}  // namespace quantmill
