#include "pipeline/heartbeat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantmill {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

RankSigns signs(bool has_work, int unfinished, int silent) {
  return {has_work, seconds(unfinished), seconds(silent)};
}

std::vector<std::string> look(RankWatch& watch, std::vector<RankSigns> seen) {
  return watch.look(seen);
}

TEST(RankWatch, NamesARankThatFinishesNothingWithGrowingGaps) {
  RankWatch watch({"rank 0 on a", "rank 1 on b"}, seconds(10));
  EXPECT_THAT(look(watch, {signs(true, 1, 0), signs(true, 9, 0)}), IsEmpty());
  EXPECT_THAT(look(watch, {signs(true, 1, 0), signs(true, 10, 0)}),
              ElementsAre("rank 1 on b has work but has finished nothing for 10.0 s"));
  EXPECT_THAT(look(watch, {signs(true, 1, 0), signs(true, 19, 0)}), IsEmpty());
  EXPECT_THAT(look(watch, {signs(true, 1, 0), signs(true, 20, 0)}),
              ElementsAre("rank 1 on b has work but has finished nothing for 20.0 s"));
  EXPECT_THAT(look(watch, {signs(true, 1, 0), signs(true, 39, 0)}), IsEmpty());
  EXPECT_THAT(look(watch, {signs(true, 1, 0), signs(true, 41, 0)}),
              ElementsAre("rank 1 on b has work but has finished nothing for 41.0 s"));
}

TEST(RankWatch, TellsOnceThatARankGoesOnAndThenStartsAnew) {
  RankWatch watch({"rank 0 on a"}, seconds(10));
  EXPECT_EQ(look(watch, {signs(true, 25, 0)}).size(), 1U);
  EXPECT_THAT(look(watch, {signs(true, 2, 0)}),
              ElementsAre("rank 0 on a goes on, after 25.0 s or more"));
  EXPECT_THAT(look(watch, {signs(true, 3, 0)}), IsEmpty());
  EXPECT_EQ(look(watch, {signs(true, 10, 0)}).size(), 1U);
}

TEST(RankWatch, AtTheEndAllHaveGoneOn) {
  RankWatch watch({"rank 0 on a", "rank 1 on b"}, seconds(10));
  EXPECT_EQ(look(watch, {signs(true, 1, 0), signs(true, 15, 0)}).size(), 1U);
  EXPECT_THAT(watch.finish(), ElementsAre("rank 1 on b goes on, after 15.0 s or more"));
}

TEST(RankWatch, ARankWithoutWorkMayWait) {
  RankWatch watch({"rank 0 on a"}, seconds(10));
  EXPECT_THAT(look(watch, {signs(false, 100, 9)}), IsEmpty());
}

TEST(RankWatch, SaysWhenTheProcessItselfDoesNotRun) {
  RankWatch watch({"rank 0 on a", "rank 1 on a"}, seconds(10));
  EXPECT_THAT(look(watch, {signs(true, 14, 12), signs(false, 99, 11)}),
              ElementsAre("rank 0 on a has given no sign of life (stopped, lost, or its machine "
                          "overloaded) for 14.0 s",
                          "rank 1 on a has given no sign of life (stopped, lost, or its machine "
                          "overloaded) for 11.0 s"));
}

}  // namespace
}  // namespace quantmill
