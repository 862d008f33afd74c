#include "quant/row_sample.h"

#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantmill {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

TEST(RowSample, TakesAllWhereTheyAreFew) {
  const std::vector<double> sizes{3, 0, 1};
  const RowSample sample = sample_rows(sizes, 3);
  EXPECT_THAT(sample.rows, ElementsAre(0, 1, 2));
  EXPECT_THAT(sample.weights, ElementsAre(1.0, 1.0, 1.0));
}

// 100 is more than a third of all and stands for itself; of the others, 8 in all, two are wanted:
// each stands for 4 of size, from 2 on.
TEST(RowSample, LargeRowsStandForThemselves) {
  const std::vector<double> sizes{1, 2, 1, 100, 1, 2, 1};
  const RowSample sample = sample_rows(sizes, 3);
  EXPECT_THAT(sample.rows, ElementsAre(1, 3, 5));
  EXPECT_THAT(sample.weights, ElementsAre(DoubleEq(2), DoubleEq(1), DoubleEq(2)));
}

TEST(RowSample, KeepsSumsThatGrowWithTheSizes) {
  std::vector<double> sizes;
  for (int i = 0; i < 1000; ++i) {
    sizes.push_back(std::exp(3 * std::sin(i * 12.9898)));
  }
  sizes[17] = 1e5;
  const RowSample sample = sample_rows(sizes, 100);
  EXPECT_NEAR(static_cast<double>(sample.rows.size()), 100, 1);
  double sum = 0;
  for (std::size_t i = 0; i < sample.rows.size(); ++i) {
    sum += sample.weights[i] * sizes[sample.rows[i]];
  }
  const double all = std::accumulate(sizes.begin(), sizes.end(), 0.0);
  EXPECT_NEAR(sum, all, 1e-3 * (all - 1e5) * 10);
}

TEST(RowSample, NothingIsTakenOfNothing) {
  const std::vector<double> zeros(10);
  EXPECT_TRUE(sample_rows(zeros, 3).rows.empty());
  std::vector<double> one(10);
  one[4] = 2;
  const RowSample sample = sample_rows(one, 3);
  double sum = 0;
  for (std::size_t i = 0; i < sample.rows.size(); ++i) {
    sum += sample.weights[i] * one[sample.rows[i]];
  }
  EXPECT_EQ(sum, 2);
}

}  // namespace
}  // namespace quantmill
