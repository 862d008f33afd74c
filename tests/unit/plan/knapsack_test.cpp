#include "plan/knapsack.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gmock/gmock.h>

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::Optional;

using Groups = std::vector<std::vector<SizedForm>>;

struct Totals {
  std::uint64_t bytes = 0;
  double loss = 0;
};

Totals totals_of(const Groups& groups, const std::vector<std::size_t>& forms) {
  Totals totals;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    totals.bytes += groups[group][forms[group]].bytes;
    totals.loss += groups[group][forms[group]].loss;
  }
  return totals;
}

// The least loss of all combinations that fit.
double least_loss(const Groups& groups, std::uint64_t bytes) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<std::size_t> forms(groups.size(), 0);
  for (std::size_t digit = 0; digit < groups.size();) {
    const Totals totals = totals_of(groups, forms);
    if (totals.bytes <= bytes) {
      least = std::min(least, totals.loss);
    }
    for (digit = 0; digit < groups.size() && ++forms[digit] == groups[digit].size(); ++digit) {
      forms[digit] = 0;
    }
  }
  return least;
}

// Up to five groups of up to four forms; of some, more bytes bring nothing.
Groups random_groups(std::mt19937& random) {
  Groups groups(1 + random() % 5);
  for (std::vector<SizedForm>& forms : groups) {
    const std::size_t count = 1 + random() % 4;
    for (std::size_t i = 0; i < count; ++i) {
      forms.push_back({1 + random() % 20, static_cast<double>(random() % 100)});
    }
  }
  return groups;
}

double largest_step(const Groups& groups) {
  double largest = 0;
  for (const std::vector<SizedForm>& forms : groups) {
    const auto [small, large] = std::ranges::minmax(forms, {}, &SizedForm::loss);
    largest = std::max(largest, large.loss - small.loss);
  }
  return largest;
}

TEST(ChooseForms, TakesTheStepThatSavesMostForAByte) {
  // From 4 bytes to 6: 0.5 a byte; 1.5; 1 to 6 and 0.05 on to 8.
  const Groups groups = {{{4, 2}, {6, 1}}, {{4, 5}, {6, 2}}, {{4, 3}, {6, 1}, {8, 0.9}}};
  EXPECT_THAT(choose_forms(groups, 12), Optional(ElementsAre(0, 0, 0)));
  EXPECT_THAT(choose_forms(groups, 15), Optional(ElementsAre(0, 1, 0)));
  EXPECT_THAT(choose_forms(groups, 16), Optional(ElementsAre(0, 1, 1)));
  EXPECT_THAT(choose_forms(groups, 18), Optional(ElementsAre(1, 1, 1)));
  EXPECT_THAT(choose_forms(groups, 1000), Optional(ElementsAre(1, 1, 2)));
}

TEST(ChooseForms, NothingFitsBelowTheSmallest) {
  const Groups groups = {{{4, 2}, {6, 1}}, {{5, 5}}};
  EXPECT_EQ(choose_forms(groups, 8), std::nullopt);
  EXPECT_THAT(choose_forms(groups, 9), Optional(ElementsAre(0, 0)));
}

TEST(ChooseForms, FillsWithWhatStillHasRoom) {
  // The first step would save most for a byte, but has no room; the second has.
  const Groups groups = {{{1, 100}, {11, 0}}, {{1, 5}, {3, 4}}};
  EXPECT_THAT(choose_forms(groups, 6), Optional(ElementsAre(0, 1)));
}

TEST(ChooseForms, TheEarlierGroupIsFirstOnATie) {
  const Groups groups = {{{2, 4}, {4, 2}}, {{2, 4}, {4, 2}}, {{1, 2}, {2, 1}}};
  EXPECT_THAT(choose_forms(groups, 7), Optional(ElementsAre(1, 0, 0)));
}

TEST(ChooseForms, PassesOverFormsThatAreLargerAndNoBetter) {
  const Groups groups = {{{6, 1}, {4, 1}, {8, 3}, {9, 0}}};
  EXPECT_THAT(choose_forms(groups, 8), Optional(ElementsAre(1)));
  EXPECT_THAT(choose_forms(groups, 9), Optional(ElementsAre(3)));
}

TEST(ChooseForms, IsWithinAStepOfTheBestAndNeverTooLarge) {
  std::mt19937 random(12);
  int best = 0;
  constexpr int kCases = 2000;
  for (int i = 0; i < kCases; ++i) {
    const Groups groups = random_groups(random);
    const std::uint64_t bytes = random() % 100;
    const auto chosen = choose_forms(groups, bytes);
    const double least = least_loss(groups, bytes);
    ASSERT_EQ(chosen.has_value(), std::isfinite(least)) << "case " << i;
    if (!chosen) {
      continue;
    }
    const Totals totals = totals_of(groups, *chosen);
    EXPECT_LE(totals.bytes, bytes) << "case " << i;
    EXPECT_LE(totals.loss, least + largest_step(groups)) << "case " << i;
    best += totals.loss == least ? 1 : 0;
  }
  EXPECT_GT(best, kCases / 2);
}

// Every step has room until none has, so that each choice is a multiplier's.
TEST(ChooseForms, IsTheBestWhereStepsAreOfOneSize) {
  std::mt19937 random(13);
  for (int i = 0; i < 500; ++i) {
    Groups groups(1 + random() % 5);
    for (std::vector<SizedForm>& forms : groups) {
      double loss = 1000;
      double gain = 100;
      for (std::uint64_t bytes = 2; bytes < 7; ++bytes) {
        forms.push_back({bytes, loss});
        gain -= static_cast<double>(random() % 20);
        loss -= gain;
      }
    }
    const std::uint64_t bytes = random() % 35;
    const auto chosen = choose_forms(groups, bytes);
    if (chosen) {
      EXPECT_EQ(totals_of(groups, *chosen).loss, least_loss(groups, bytes)) << "case " << i;
    }
  }
}

}  // namespace
}  // namespace quantmill
