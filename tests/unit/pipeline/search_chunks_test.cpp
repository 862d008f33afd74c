// How the search block by block is cut, and that of a trillion parameters 512 ranks get equal
// shares and hold little.

#include "pipeline/search_chunks.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>

#include "plan/search_plan.h"
#include "tests/support/makespan.h"
#include "tests/support/released_model.h"
#include "tests/support/temporary_folder.h"

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A plan with one group for each list of readers: {rows, activation}, of 32 columns.
Plan plan_of(const std::vector<std::vector<std::pair<std::uint64_t, std::size_t>>>& groups) {
  Plan plan;
  plan.recipe = default_recipe(Scheme::kMxfp4, Layout::kQuark);
  plan.groups.resize(groups.size());
  plan.architecture.fold_groups.resize(groups.size());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    plan.architecture.fold_groups[group].num_channels = 32;
    for (const auto& [rows, activation] : groups[group]) {
      plan.architecture.activations.resize(
          std::max(plan.architecture.activations.size(), activation + 1));
      plan.architecture.activations[activation].columns.size = 32;
      ModelTensor tensor;
      tensor.shape = {rows, 32};
      plan.search_tasks.push_back({group,
                                   activation,
                                   plan.architecture.tensors.size(),
                                   0,
                                   rows,
                                   1,
                                   (rows + std::min(rows, kBlockGridRows)) * 32});
      plan.architecture.tensors.push_back(tensor);
    }
  }
  return plan;
}

// First and last task of each chunk.
std::vector<std::pair<std::size_t, std::size_t>> ranges(const std::vector<SearchChunk>& chunks) {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (const SearchChunk& chunk : chunks) {
    found.emplace_back(chunk.first, chunk.last);
  }
  return found;
}

using Range = std::pair<std::size_t, std::size_t>;

TEST(CutIntoChunks, AGroupOfManyWeightsIsCutBetweenReaders) {
  const Plan plan = plan_of({{{600, 0}, {600, 0}, {600, 0}, {600, 1}}, {{600, 2}, {599, 2}}});
  ChunkLimits limits;
  limits.weights = 600 * 32;
  const std::vector<SearchChunk> chunks = cut_into_chunks(plan, limits);
  EXPECT_THAT(ranges(chunks),
              ElementsAre(Range{0, 1}, Range{1, 2}, Range{2, 3}, Range{3, 4}, Range{4, 6}));
  EXPECT_FALSE(chunks[3].is_whole);
  EXPECT_TRUE(chunks[4].is_whole);
  EXPECT_EQ(chunks[0].measure_cost, 600U * 32);
  EXPECT_EQ(chunks[0].search_cost, 512U * 32);
  EXPECT_EQ(chunks[4].cost, (1199U + 1024) * 32);
  limits.most = 2;
  EXPECT_THAT(ranges(cut_into_chunks(plan, limits)),
              ElementsAre(Range{0, 2}, Range{2, 4}, Range{4, 6}));
  EXPECT_EQ(cut_into_chunks(plan).size(), 2U);  // small models are as they were without chunks
}

TEST(CutIntoChunks, AnActivationBeginsInOneChunk) {
  const Plan plan = plan_of({{{600, 0}, {600, 0}, {600, 1}, {600, 2}}});
  ChunkLimits limits;
  limits.weights = 1200 * 32;
  const std::vector<SearchChunk> halves = cut_into_chunks(plan, limits);
  ASSERT_EQ(halves.size(), 2U);
  EXPECT_THAT(activations_of(plan, halves[1]), ElementsAre(1U, 2U));
  EXPECT_THAT(begun_activations(plan, halves[1]), ElementsAre(1U, 2U));
  limits.weights = 600 * 32;
  const std::vector<SearchChunk> quarters = cut_into_chunks(plan, limits);
  EXPECT_THAT(begun_activations(plan, quarters[0]), ElementsAre(0U));
  EXPECT_THAT(activations_of(plan, quarters[1]), ElementsAre(0U));
  EXPECT_THAT(begun_activations(plan, quarters[1]), IsEmpty());
}

TEST(MakeWaves, HoldNoMoreThanTheyMayAndLeaveOutWhatIsFinished) {
  const std::vector<std::pair<std::uint64_t, std::size_t>> two = {{600, 0}, {600, 0}};
  const Plan plan = plan_of({two, two, {{600, 0}}, two, {{600, 0}}, {{600, 0}}});
  ChunkLimits limits;
  limits.weights = 600 * 32;
  const std::vector<SearchChunk> chunks = cut_into_chunks(plan, limits);
  const std::uint64_t group = held_bytes(plan, chunks, {{0, 1}, {}}, 1);
  EXPECT_EQ(group, 8U * (2 * (64 + 600 + 25) + 64));
  limits.wave_bytes = 2 * group;
  std::vector<bool> wanted(6, true);
  const auto waves = make_waves(plan, chunks, wanted, 1, limits);
  ASSERT_EQ(waves.size(), 2U);
  EXPECT_THAT(waves[0].cut, ElementsAre(0U, 1U, 2U, 3U));
  EXPECT_THAT(waves[0].whole, ElementsAre(4U, 8U));
  EXPECT_THAT(waves[1].cut, ElementsAre(5U, 6U));
  EXPECT_THAT(waves[1].whole, ElementsAre(7U));
  wanted[0] = false;
  wanted[4] = false;
  const auto rest = make_waves(plan, chunks, wanted, 1, limits);
  ASSERT_EQ(rest.size(), 1U);
  EXPECT_THAT(rest[0].cut, ElementsAre(2U, 3U, 5U, 6U));
  EXPECT_THAT(rest[0].whole, ElementsAre(4U, 8U));
  limits.wave_bytes = 1;  // each wave has a group all the same
  EXPECT_EQ(make_waves(plan, chunks, wanted, 1, limits).size(), 2U);
}

// Kimi-K2's, with statistics of everything, or of what is no expert's own.
Plan trillion(bool with_experts) {
  const test::TemporaryFolder folder;
  write_without_data(test::read_released_model("kimi_k2"), folder.path());
  Plan plan = make_plan_without_search(Checkpoint::open(folder.path()),
                                       default_recipe(Scheme::kMxfp4, Layout::kQuark));
  Statistics statistics;
  for (const Activation& activation : plan.architecture.activations) {
    if (with_experts || activation.name.find(".experts.") == std::string::npos) {
      statistics[activation.recorded_as.front()].absmean = {1.0};
    }
  }
  match_statistics(statistics, plan.architecture);
  for (GroupPlan& group : plan.groups) {
    group.searched = true;
  }
  cut_search_tasks(statistics, plan);
  return plan;
}

// The share of the time that ranks wait for the last one of a round, if time is cost; the same
// chunks must be in both rounds of a node.
double idle_share(const std::vector<SearchChunk>& chunks,
                  const std::vector<SearchWave>& waves,
                  const std::vector<int>& node_ranks) {
  double total = 0;
  double rounds = 0;
  for (const SearchWave& wave : waves) {
    std::uint64_t measured = 0;
    std::uint64_t searched = 0;
    for (std::size_t node = 0; node < node_ranks.size(); ++node) {
      const WaveShare share = share_of_node(chunks, wave, node_ranks, node);
      const auto span_of = [&](const std::vector<std::size_t>& tasks,
                               std::uint64_t SearchChunk::*cost) {
        std::vector<std::uint64_t> costs;
        for (const std::size_t task : tasks) {
          costs.push_back(chunks[task].is_whole ? chunks[task].cost : chunks[task].*cost);
          total += static_cast<double>(costs.back());
        }
        return test::makespan(costs, node_ranks[node]);
      };
      measured = std::max(measured, span_of(share.measured, &SearchChunk::measure_cost));
      searched = std::max(searched, span_of(share.searched, &SearchChunk::search_cost));
    }
    rounds += static_cast<double>(measured + searched);
  }
  const int ranks = std::accumulate(node_ranks.begin(), node_ranks.end(), 0);
  return 1 - total / (ranks * rounds);
}

TEST(Trillion, SharesOfTheSearchAreEqual) {
  constexpr std::uint64_t kMostHeld = std::uint64_t{200} << 20;
  for (const bool with_experts : {true, false}) {
    const Plan plan = trillion(with_experts);
    const std::vector<SearchChunk> chunks = cut_into_chunks(plan);
    const std::vector<bool> all(plan.groups.size(), true);
    for (const std::size_t nodes : {1U, 8U, 64U}) {
      const std::vector<int> node_ranks(nodes, 8);
      const std::vector<SearchWave> waves = make_waves(plan, chunks, all, nodes);
      // Without groups that are whole nothing fills the end of a round.
      EXPECT_LT(idle_share(chunks, waves, node_ranks), with_experts ? 0.015 : 0.06) << nodes;
      for (const SearchWave& wave : waves) {
        EXPECT_LT(held_bytes(plan, chunks, wave, nodes), kMostHeld);
      }
    }
  }
}

}  // namespace
}  // namespace quantmill
