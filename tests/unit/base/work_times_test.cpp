#include "base/work_times.h"

#include <gtest/gtest.h>
#include <chrono>
#include <thread>

namespace quantmill {
namespace {

using std::chrono::milliseconds;

double milliseconds_of(const WorkTimes& times, Work work) {
  return static_cast<double>(times.nanoseconds[static_cast<std::size_t>(work)]) / 1e6;
}

// A loaded machine makes sleeps longer, never shorter: only lower bounds are asked for, and that
// what is inside is not counted outside too.
TEST(WorkTimes, WhatIsInsideIsTakenFromTheOuter) {
  const WorkTimes before = work_times();
  const auto start = std::chrono::steady_clock::now();
  {
    const WorkTimer encode(Work::kEncode);
    std::this_thread::sleep_for(milliseconds(20));
    {
      const WorkTimer read(Work::kRead, 1000);
      std::this_thread::sleep_for(milliseconds(30));
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  const double all =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const WorkTimes after = work_times();
  const double encode =
      milliseconds_of(after, Work::kEncode) - milliseconds_of(before, Work::kEncode);
  const double read = milliseconds_of(after, Work::kRead) - milliseconds_of(before, Work::kRead);
  EXPECT_GE(encode, 40);
  EXPECT_GE(read, 30);
  EXPECT_LE(encode + read, all);
  EXPECT_EQ(after.bytes_read - before.bytes_read, 1000);
  EXPECT_EQ(after.bytes_written, before.bytes_written);
}

TEST(WorkTimes, ThreadsAreAddedUp) {
  const WorkTimes before = work_times();
  const auto wait = [] {
    const WorkTimer write(Work::kWrite, 7);
    std::this_thread::sleep_for(milliseconds(20));
  };
  {
    const std::jthread one(wait);
    const std::jthread other(wait);
  }
  const WorkTimes after = work_times();
  EXPECT_GE(milliseconds_of(after, Work::kWrite) - milliseconds_of(before, Work::kWrite), 40);
  EXPECT_EQ(after.bytes_written - before.bytes_written, 14);
}

}  // namespace
}  // namespace quantmill
