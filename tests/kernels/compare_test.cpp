#include "kernels/compare.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

namespace quantmill {
namespace {

const Context kReference{Backend::kReference, Isa::kPlain};

TEST(WeightedErrors, CountAColumnByItsWeight) {
  const std::array<float, 4> want = {1, 2, 3, 4};
  const std::array<float, 4> got = {1.5F, 2, 3, 3};
  const std::array<float, 2> weights = {2, 0.5F};
  ErrorSums sums;
  add_errors(kReference, {got.data(), 2, 2}, {want.data(), 2, 2}, sums, weights);
  // Errors 0.5 and 1 in columns of weight 2 and 0.5.
  EXPECT_EQ(sums.squared_error, 1.0 + 0.25);
  EXPECT_EQ(sums.squared_norm, 4.0 + 1.0 + 36.0 + 4.0);
}

TEST(WeightedErrors, DoNotDependOnWhereRowsAreCut) {
  constexpr std::size_t kRows = 5;
  constexpr std::size_t kCols = 37;  // no multiple of the lanes
  std::vector<float> want;
  std::vector<float> got;
  std::vector<float> weights;
  for (std::size_t i = 0; i < kRows * kCols; ++i) {
    want.push_back(static_cast<float>(i % 7) - 2.3F);
    got.push_back(want.back() + static_cast<float>(i % 5) * 0.1F);
    weights.push_back(0.3F + static_cast<float>(i % 11));
  }
  weights.resize(kCols);
  ErrorSums whole;
  add_errors(kReference, {got.data(), kRows, kCols}, {want.data(), kRows, kCols}, whole, weights);
  ErrorSums cut;
  for (std::size_t row = 0; row < kRows; ++row) {
    add_errors(
        kReference, {&got[row * kCols], 1, kCols}, {&want[row * kCols], 1, kCols}, cut, weights);
  }
  EXPECT_EQ(whole.squared_error, cut.squared_error);
  EXPECT_EQ(whole.squared_norm, cut.squared_norm);
}

}  // namespace
}  // namespace quantmill
