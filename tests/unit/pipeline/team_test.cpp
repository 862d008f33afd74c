#include "pipeline/team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "pipeline/run.h"

namespace quantmill {
namespace {

using testing::ElementsAre;

TEST(AssignToNodes, LargestFirstToTheLeastLoaded) {
  const std::vector<std::uint64_t> costs = {1, 7, 3, 4};
  const std::vector<int> nodes = {1, 1};
  // 7 -> node 0; 4 -> node 1; 3 -> node 1 (4 < 7); 1 -> node 0 (7 = 7, lowest).
  EXPECT_THAT(assign_to_nodes(costs, nodes), ElementsAre(0U, 0U, 1U, 1U));
}

TEST(AssignToNodes, ANodeWithMoreRanksTakesMore) {
  const std::vector<std::uint64_t> costs(8, 10);
  const std::vector<int> nodes = {1, 3};
  const auto assigned = assign_to_nodes(costs, nodes);
  EXPECT_EQ(std::ranges::count(assigned, 0U), 2);
  EXPECT_EQ(std::ranges::count(assigned, 1U), 6);
}

TEST(AssignToNodes, OneNodeTakesAll) {
  EXPECT_THAT(assign_to_nodes(std::vector<std::uint64_t>{5, 0, 2}, std::vector<int>{4}),
              ElementsAre(0U, 0U, 0U));
}

TEST(WorkerBufferBytes, SharesTheMemoryAmongThreads) {
  const std::uint64_t mebibyte = std::uint64_t{1} << 20;
  EXPECT_EQ(worker_buffer_bytes(80 * mebibyte, 0, 4, mebibyte, 8 * mebibyte), 2 * mebibyte);
  EXPECT_EQ(worker_buffer_bytes(8192 * mebibyte, 0, 4, mebibyte, 8 * mebibyte),
            8 * mebibyte);  // more does not help
  EXPECT_THROW((void)worker_buffer_bytes(60 * mebibyte, 0, 1, mebibyte, 8 * mebibyte), Error);
  // Beside what the model takes.
  EXPECT_EQ(worker_buffer_bytes(120 * mebibyte, 40 * mebibyte, 4, mebibyte, 8 * mebibyte),
            2 * mebibyte);
  EXPECT_THROW((void)worker_buffer_bytes(107 * mebibyte, 40 * mebibyte, 4, mebibyte, 8 * mebibyte),
               Error);
  EXPECT_THROW((void)worker_buffer_bytes(67 * mebibyte, 0, 4, mebibyte, 8 * mebibyte), Error);
}

}  // namespace
}  // namespace quantmill
