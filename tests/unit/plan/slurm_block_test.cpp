#include "plan/slurm_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantmill {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30;

Plan plan_of(std::uint64_t source_bytes, std::size_t shards, bool with_search) {
  Plan plan;
  plan.source_bytes = source_bytes;
  plan.shards.resize(shards);
  plan.search_tasks.resize(with_search ? 1 : 0);
  return plan;
}

TEST(SlurmBlock, ASmallModelWantsOneCoreForMinutes) {
  const SlurmBlock block =
      suggest_slurm_block(plan_of(3 * kGibibyte, 1, true), 2 * kGibibyte, 0, 0);
  // 3072 MiB at 50 MiB/s: 62 s; twice that is 3 min, and 10.
  EXPECT_EQ(print_slurm_block(block),
            "#SBATCH --job-name=quantmill\n"
            "#SBATCH --nodes=1\n"
            "#SBATCH --ntasks-per-node=1\n"
            "#SBATCH --cpus-per-task=1\n"
            "#SBATCH --mem=2560M\n"
            "#SBATCH --time=00:15:00\n"
            "#SBATCH --output=quantmill-%j.log\n"
            "#SBATCH --open-mode=append\n"
            "#SBATCH --requeue\n"
            "#SBATCH --signal=USR1@120\n");
  EXPECT_THAT(describe_slurm_block(block),
              HasSubstr("3.0 GiB of source at an assumed 50.0 MiB/s a core take 2 min on 1 cores"));
}

TEST(SlurmBlock, ALargeModelGetsNodesForHalfAnHour) {
  // 1500 GiB at 10 MiB/s: 153600 core seconds, so 86 cores: 6 nodes of 15 ranks, 1707 s.
  const SlurmBlock block =
      suggest_slurm_block(plan_of(1500 * kGibibyte, 300, true), kGibibyte, 1, 10 * kMebibyte);
  EXPECT_EQ(block.nodes, 6U);
  EXPECT_EQ(block.tasks_per_node, 15U);
  EXPECT_EQ(block.memory_mib, 15U * 1536);
  EXPECT_EQ(block.estimated_seconds, 1707U);
  EXPECT_EQ(block.limit_minutes, 70U);  // 57 + 10, rounded up
}

TEST(SlurmBlock, NodesWithoutAFileOfTheirOwnAreNotAskedFor) {
  const SlurmBlock block =
      suggest_slurm_block(plan_of(1500 * kGibibyte, 2, true), kGibibyte, 4, 10 * kMebibyte);
  EXPECT_EQ(block.nodes, 2U);
  EXPECT_EQ(block.tasks_per_node, 4U);
  EXPECT_EQ(block.cpus_per_task, 4U);
  EXPECT_EQ(block.estimated_seconds, 4800U);
  EXPECT_THAT(print_slurm_block(block), HasSubstr("--time=02:50:00\n"));
}

TEST(SlurmBlock, DaysAreWrittenAsSlurmWantsThem) {
  const SlurmBlock block =
      suggest_slurm_block(plan_of(1500 * kGibibyte, 1, true), kGibibyte, 1, kMebibyte);
  EXPECT_EQ(block.estimated_seconds, 96000U);
  EXPECT_THAT(print_slurm_block(block), HasSubstr("--time=2-05:30:00\n"));
}

TEST(SlurmBlock, WithoutASearchMoreIsAssumed) {
  EXPECT_EQ(suggest_slurm_block(plan_of(kGibibyte, 1, false), kGibibyte, 1, 0).assumed_rate,
            200 * kMebibyte);
}

}  // namespace
}  // namespace quantmill
