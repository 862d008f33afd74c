#include "pipeline/progress.h"

#include <gmock/gmock.h>

namespace quantmill {
namespace {

Progress half_way() {
  Progress progress;
  progress.phase = "write";
  progress.seconds = 10;
  progress.bytes = {1'500'000'000, 4'500'000'000};
  progress.tasks = {30, 90};
  progress.tensors = {12, 40};
  progress.slowest = "rank 1 on a";
  progress.slowest_rate = 5e7;
  return progress;
}

TEST(ProgressLine, HasEverythingWhereThereIsRoom) {
  EXPECT_EQ(progress_line(half_way(), 200),
            "write 1.50/4.50 GB (33 %)  0.15 GB/s  0:20 left  12/40 tensors  slowest rank 1 on a: "
            "0.05 GB/s");
}

TEST(ProgressLine, LeavesOutWhatDoesNotFit) {
  EXPECT_EQ(progress_line(half_way(), 55), "write 1.50/4.50 GB (33 %)  0.15 GB/s  0:20 left");
  EXPECT_EQ(progress_line(half_way(), 25), "write 1.50/4.50 GB (33 %)");
  EXPECT_EQ(progress_line(half_way(), 24), "");
}

TEST(ProgressLine, CountsTasksWhereTensorsAreNotKnown) {
  Progress progress = half_way();
  progress.tensors = {};
  progress.slowest = "";
  EXPECT_EQ(progress_line(progress, 200),
            "write 1.50/4.50 GB (33 %)  0.15 GB/s  0:20 left  30/90 tasks");
}

TEST(ProgressLine, KnowsNoEndBeforeTheBeginning) {
  Progress progress = half_way();
  progress.bytes.done = 0;
  progress.slowest = "";
  EXPECT_EQ(progress_line(progress, 200), "write 0.00/4.50 GB (0 %)  0.00 GB/s  12/40 tensors");
}

TEST(ProgressLine, TellsHours) {
  Progress progress = half_way();
  progress.seconds = 3661;  // and twice that is left
  EXPECT_THAT(progress_line(progress, 200), testing::HasSubstr("  2:02:02 left  "));
}

}  // namespace
}  // namespace quantmill
