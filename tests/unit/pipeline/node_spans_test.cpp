// How nodes share the writing, and that of a trillion parameters 512 ranks get equal shares.

#include "pipeline/node_spans.h"

#include <algorithm>
#include <functional>
#include <set>

#include <gmock/gmock.h>

#include "pipeline/team.h"
#include "tests/support/makespan.h"
#include "tests/support/released_model.h"
#include "tests/support/temporary_folder.h"

namespace quantmill {
namespace {

using testing::ElementsAre;

TEST(CutIntoSpans, AnItemBelongsToTheNodeThatItsMiddleFallsTo) {
  const std::vector<std::uint64_t> costs = {1, 7, 3, 4};  // middles 0.5, 4.5, 9.5, 13 of 15
  EXPECT_THAT(cut_into_spans(costs, std::vector<int>{1, 1}), ElementsAre(0U, 0U, 1U, 1U));
  EXPECT_THAT(cut_into_spans(costs, std::vector<int>{1, 3}), ElementsAre(0U, 1U, 1U, 1U));
  EXPECT_THAT(cut_into_spans(costs, std::vector<int>{5}), ElementsAre(0U, 0U, 0U, 0U));
}

TEST(CutIntoSpans, ANodeMayGetNothing) {
  EXPECT_THAT(cut_into_spans(std::vector<std::uint64_t>{9, 9}, std::vector<int>{1, 1, 1}),
              ElementsAre(0U, 2U));
  EXPECT_THAT(cut_into_spans(std::vector<std::uint64_t>{}, std::vector<int>{1, 1}), ElementsAre());
}

constexpr std::size_t kNodes = 64;
constexpr int kRanksOfNode = 8;

// The share of the time that ranks wait for the last one, if time is cost: on each node free ranks
// take the largest task that is left.
double idle_share(const std::vector<std::uint64_t>& costs,
                  const std::vector<std::size_t>& node_of) {
  std::vector<std::vector<std::uint64_t>> of_node(kNodes);
  double total = 0;
  for (std::size_t task = 0; task < costs.size(); ++task) {
    of_node[node_of[task]].push_back(costs[task]);
    total += static_cast<double>(costs[task]);
  }
  std::uint64_t last = 0;
  for (std::vector<std::uint64_t>& tasks : of_node) {
    std::ranges::sort(tasks, std::ranges::greater());
    last = std::max(last, test::makespan(tasks, kRanksOfNode));
  }
  return 1 - total / (static_cast<double>(kNodes * kRanksOfNode) * static_cast<double>(last));
}

TEST(Trillion, SharesOfTheWritingAreEqual) {
  const test::TemporaryFolder folder;
  write_without_data(test::read_released_model("kimi_k2"), folder.path());
  Recipe recipe;
  recipe.scaling = Scaling::kNone;
  recipe.max_shard_bytes = std::uint64_t{20} << 30;  // 26 shards: fewer than nodes
  const Plan plan = make_plan_without_search(Checkpoint::open(folder.path()), recipe);
  const std::vector<int> node_ranks(kNodes, kRanksOfNode);
  const std::vector<std::uint64_t> costs = costs_of(plan.write_tasks);
  const std::vector<std::size_t> node_of = nodes_of_write_tasks(plan, node_ranks);
  EXPECT_LT(idle_share(costs, node_of), 0.03);
  // Each shard has few writers, and is finished by one of them.
  std::vector<std::set<std::size_t>> writers(plan.shards.size());
  for (std::size_t task = 0; task < node_of.size(); ++task) {
    const TensorWork& work = plan.tensors[plan.write_tasks[task].tensor];
    writers[work.parts.front().shard].insert(node_of[task]);
  }
  const std::vector<std::size_t> finished_by = nodes_of_shards(plan, node_of);
  for (std::size_t shard = 0; shard < writers.size(); ++shard) {
    EXPECT_LE(writers[shard].size(), 2 + kNodes / plan.shards.size());
    EXPECT_TRUE(writers[shard].contains(finished_by[shard]));
  }
  // Where tasks may go to any node.
  EXPECT_LT(idle_share(costs, assign_to_nodes(costs, node_ranks)), 0.03);
}

}  // namespace
}  // namespace quantmill
