#include "stats/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quantmill {
namespace {

using testing::HasSubstr;

InputStatistics input(std::vector<double> absmean, std::uint64_t count) {
  InputStatistics result;
  result.absmean = std::move(absmean);
  result.count = count;
  result.has_count = true;
  return result;
}

Partition all_row(const std::string&) {
  return Partition::kRow;
}

Partition all_replicated(const std::string&) {
  return Partition::kReplicated;
}

Statistics merge_runs(const std::vector<Statistics>& runs) {
  RunMerger merger;
  for (const Statistics& run : runs) {
    merger.add(Statistics(run));
  }
  return merger.finish();
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput) << error.what();
    return error.message();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(MergeTensorParallel, ConcatenatesRowParallelInputsInRankOrder) {
  InputStatistics first = input({1, 2}, 7);
  first.sqmean = {10, 20};
  first.absmax = {5, 6};
  InputStatistics second = input({3}, 7);
  second.sqmean = {30};
  second.absmax = {7};

  const Statistics merged = merge_tensor_parallel({{{"x", first}}, {{"x", second}}}, all_row);

  EXPECT_EQ(merged.at("x").absmean, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(merged.at("x").sqmean, (std::vector<double>{10, 20, 30}));
  EXPECT_EQ(merged.at("x").absmax, (std::vector<double>{5, 6, 7}));
  EXPECT_EQ(merged.at("x").count, 7U);
  EXPECT_EQ(merged.at("x").part_channels, (std::vector<std::uint64_t>{2, 1}));
}

TEST(MergeTensorParallel, KeepsRankZerosReplicatedValues) {
  // One step of bfloat16 apart at 1, and noise beside a large channel.
  const Statistics merged = merge_tensor_parallel(
      {{{"x", input({1.0, 100, 0}, 7)}}, {{"x", input({1.0078125, 100, 1e-5}, 7)}}},
      all_replicated);
  EXPECT_EQ(merged.at("x").absmean, (std::vector<double>{1.0, 100, 0}));
  EXPECT_TRUE(merged.at("x").part_channels.empty());
}

TEST(MergeTensorParallel, RefusesReplicatedValuesThatDisagree) {
  const std::string message = refusal([] {
    merge_tensor_parallel({{{"x", input({1, 2}, 7)}}, {{"x", input({1, 2.03}, 7)}}},
                          all_replicated);
  });
  EXPECT_THAT(message, HasSubstr("statistics of x"));
  EXPECT_THAT(message, HasSubstr("channel 1 is 2 on rank 0 and 2.03 on rank 1"));
}

TEST(MergeTensorParallel, RefusesReplicatedInputsOfOtherLengths) {
  EXPECT_THAT(
      refusal([] {
        merge_tensor_parallel({{{"x", input({1, 2}, 7)}}, {{"x", input({1}, 7)}}}, all_replicated);
      }),
      HasSubstr("rank 1 has 1 channels, rank 0 has 2"));
}

TEST(MergeTensorParallel, RefusesCountsThatDisagree) {
  EXPECT_THAT(refusal([] {
                merge_tensor_parallel({{{"x", input({1}, 7)}}, {{"x", input({1}, 8)}}}, all_row);
              }),
              HasSubstr("rank 1 counted 8 tokens, rank 0 counted 7 tokens"));
}

TEST(MergeTensorParallel, RefusesACountThatOneRankLacks) {
  InputStatistics without = input({1}, 0);
  without.has_count = false;
  EXPECT_THAT(refusal([&] {
                merge_tensor_parallel({{{"x", input({1}, 0)}}, {{"x", without}}}, all_row);
              }),
              HasSubstr("rank 1 has no count"));
}

TEST(MergeTensorParallel, RefusesOtherKindsOfVectors) {
  InputStatistics other = input({1}, 7);
  other.absmax = {1};
  EXPECT_THAT(refusal([&] {
                merge_tensor_parallel({{{"x", input({1}, 7)}}, {{"x", other}}}, all_row);
              }),
              HasSubstr("rank 1 has absmax, rank 0 does not"));
}

TEST(MergeTensorParallel, RefusesAnInputThatARankLacks) {
  const Statistics both{{"x", input({1}, 7)}, {"y", input({1}, 7)}};
  const Statistics one{{"x", input({1}, 7)}};
  EXPECT_THAT(refusal([&] {
                merge_tensor_parallel({both, both, one}, all_row);
              }),
              HasSubstr("statistics of y: rank 0 has it, rank 2 does not"));
  EXPECT_THAT(refusal([&] {
                merge_tensor_parallel({one, both}, all_row);
              }),
              HasSubstr("statistics of y: rank 1 has it, rank 0 does not"));
}

TEST(MergeTensorParallel, RefusesNoParts) {
  refusal([] { merge_tensor_parallel({}, all_row); });
}

TEST(MergeRuns, WeightsMeansByTokensAndTakesTheLargestMaximum) {
  InputStatistics first = input({1, 8}, 1);
  first.sqmean = {4, 4};
  first.absmax = {3, 9};
  InputStatistics second = input({5, 8}, 3);
  second.sqmean = {8, 0};
  second.absmax = {4, 2};

  const Statistics merged = merge_runs({{{"x", first}}, {{"x", second}}});

  EXPECT_EQ(merged.at("x").absmean, (std::vector<double>{4, 8}));  // (1*1 + 3*5)/4
  EXPECT_EQ(merged.at("x").sqmean, (std::vector<double>{7, 1}));
  EXPECT_EQ(merged.at("x").absmax, (std::vector<double>{4, 9}));
  EXPECT_EQ(merged.at("x").count, 4U);
}

TEST(MergeRuns, KeepsInputsThatOnlySomeRunsHave) {
  const Statistics merged =
      merge_runs({{{"x", input({1}, 1)}}, {{"y", input({2}, 2)}}, {{"x", input({3}, 1)}}});
  EXPECT_EQ(merged.at("x").absmean, std::vector<double>{2});
  EXPECT_EQ(merged.at("y").absmean, std::vector<double>{2});
  EXPECT_EQ(merged.at("y").count, 2U);
}

TEST(MergeRuns, TakesRunsThatSawNoToken) {
  const Statistics merged =
      merge_runs({{{"x", input({0}, 0)}}, {{"x", input({0}, 0)}}, {{"x", input({3}, 5)}}});
  EXPECT_EQ(merged.at("x").absmean, std::vector<double>{3});
  EXPECT_EQ(merged.at("x").count, 5U);
}

TEST(MergeRuns, ForgetsPartsThatDiffer) {
  InputStatistics two = input({1, 2}, 1);
  two.partition = Partition::kRow;
  two.part_channels = {1, 1};
  InputStatistics one = two;
  one.part_channels = {2};
  EXPECT_EQ(merge_runs({{{"x", two}}, {{"x", two}}}).at("x").part_channels,
            (std::vector<std::uint64_t>{1, 1}));
  EXPECT_EQ(merge_runs({{{"x", two}}, {{"x", one}}}).at("x").part_channels,
            std::vector<std::uint64_t>{2});
}

TEST(MergeRuns, JoinsSourcesAndShortensLongLists) {
  std::vector<Statistics> runs;
  for (int run = 0; run < 9; ++run) {
    runs.push_back({{"x", input({1}, 1)}});
    runs.back().at("x").source = "run" + std::to_string(run);
  }
  EXPECT_EQ(merge_runs({runs[0], runs[1], runs[0]}).at("x").source, "run0, run1");
  EXPECT_EQ(merge_runs(runs).at("x").source, "run0 ... run8 (9 files)");
}

TEST(MergeRuns, RefusesARunWithoutCounts) {
  InputStatistics without = input({1}, 0);
  without.has_count = false;
  EXPECT_THAT(refusal([&] {
                merge_runs({{{"x", input({1}, 1)}}, {{"x", without}}});
              }),
              HasSubstr("run 1 has no token count"));
}

TEST(MergeRuns, RefusesOtherNumbersOfChannels) {
  EXPECT_THAT(refusal([] {
                merge_runs({{{"x", input({1}, 1)}}, {{"x", input({1, 2}, 1)}}});
              }),
              HasSubstr("run 1 has 2 channels, run 0 has 1"));
}

TEST(MergeRuns, RefusesOtherKindsOfVectors) {
  InputStatistics other = input({1}, 7);
  other.sqmean = {1};
  EXPECT_THAT(refusal([&] {
                merge_runs({{{"x", other}}, {{"x", input({1}, 1)}}});
              }),
              HasSubstr("run 1 lacks sqmean, run 0 has it"));
}

TEST(MergeRuns, RefusesInputsThatWereSplitOtherwise) {
  InputStatistics row = input({1}, 1);
  row.partition = Partition::kRow;
  row.part_channels = {1};
  EXPECT_THAT(refusal([&] {
                merge_runs({{{"x", row}}, {{"x", input({1}, 1)}}});
              }),
              HasSubstr("run 0 and run 1 split it"));
}

TEST(MergeRuns, RefusesCountsThatOverflow) {
  const auto most = std::numeric_limits<std::uint64_t>::max();
  EXPECT_THAT(refusal([&] {
                merge_runs({{{"x", input({1}, most)}}, {{"x", input({1}, 1)}}});
              }),
              HasSubstr("64 bits"));
}

}  // namespace
}  // namespace quantmill
