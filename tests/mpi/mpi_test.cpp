#include "comm/mpi.h"

#include <cstdlib>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/checked.h"

namespace quantmill {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  copy_bytes(bytes.data(), text.data(), text.size());
  return bytes;
}

TEST(MpiEnvironment, RanksOfOneMachineDoNotLookForNetworks) {
  ASSERT_NE(std::getenv("OMPI_MCA_pml"), nullptr);
  EXPECT_STREQ(std::getenv("OMPI_MCA_pml"), "ob1");
}

TEST(Communicator, BroadcastGivesTheRootsBytesToAll) {
  const Communicator world = Communicator::world();
  const int root = world.size() - 1;
  EXPECT_EQ(world.broadcast(bytes_of(world.rank() == root ? "from the last" : ""), root),
            bytes_of("from the last"));
}

TEST(Communicator, GatherAllKeepsRankOrderAndLengths) {
  const Communicator world = Communicator::world();
  const auto all =
      world.gather_all(bytes_of(std::string(static_cast<std::size_t>(world.rank()), 'x')));
  ASSERT_EQ(all.size(), static_cast<std::size_t>(world.size()));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    EXPECT_EQ(all[rank], bytes_of(std::string(rank, 'x')));
  }
}

TEST(Communicator, SumDisjointKeepsEveryBit) {
  const Communicator world = Communicator::world();
  std::vector<double> values(100, 0.0);
  for (int i = 0; i < 100; ++i) {
    if (i % world.size() == world.rank()) {
      values[static_cast<std::size_t>(i)] = 1.0 / (3.0 + i);
    }
  }
  world.sum_disjoint(values);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(values[static_cast<std::size_t>(i)], 1.0 / (3.0 + i));
  }
}

TEST(Communicator, CollectivelyThrowsTheLowestRanksErrorEverywhere) {
  const Communicator world = Communicator::world();
  const int first_bad = world.size() > 1 ? 1 : 0;
  try {
    world.collectively([&] {
      if (world.rank() >= first_bad) {
        throw Error(ErrorCode::kInput, "bad shard " + std::to_string(world.rank()));
      }
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_TRUE(error.is_agreed());
    const std::string message = "bad shard " + std::to_string(first_bad);
    EXPECT_EQ(error.message(), first_bad == 0 ? message : "rank 1: " + message);
  }
}

TEST(Communicator, CollectivelyPassesWhenAllSucceed) {
  const Communicator world = Communicator::world();
  int calls = 0;
  world.collectively([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(Communicator, SplitByNodeCanPretendSmallerNodes) {
  const Communicator world = Communicator::world();
  const Communicator node = world.split_by_node(2);
  EXPECT_LE(node.size(), 2);
  EXPECT_EQ(node.rank(), world.rank() % 2);
}

TEST(SharedWords, EveryRankReadsWhatTheOthersWrote) {
  const Communicator node = Communicator::world().split_by_node(0);
  const SharedWords words(node, static_cast<std::size_t>(node.size()) + 1);
  const auto mine = static_cast<std::size_t>(node.rank());
  words.at(mine).store(100 + mine);
  words.at(static_cast<std::size_t>(node.size())).fetch_add(1);
  node.barrier();
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(node.size()); ++rank) {
    EXPECT_EQ(words.at(rank).load(), 100 + rank);
  }
  EXPECT_EQ(words.at(static_cast<std::size_t>(node.size())).load(),
            static_cast<std::uint64_t>(node.size()));
  node.barrier();
}

TEST(SharedCounter, GivesEachNumberOnceOverAllRanks) {
  const Communicator world = Communicator::world();
  const Communicator node = world.split_by_node(0);
  SharedCounter counter(node);
  constexpr std::uint64_t kTasks = 1000;
  std::vector<double> taken(kTasks, 0.0);
  for (std::uint64_t task = counter.take(); task < kTasks; task = counter.take()) {
    taken[task] += 1;
  }
  world.sum_disjoint(taken);
  EXPECT_THAT(taken, testing::Each(1.0));
  world.barrier();
}

TEST(SharedCounter, StopIsSeenByAllRanks) {
  const Communicator world = Communicator::world();
  SharedCounter counter(world.split_by_node(0));
  if (world.rank() == world.size() - 1) {
    counter.stop();
  }
  world.barrier();
  EXPECT_TRUE(counter.stopped());
  world.barrier();
}

TEST(JobStop, EveryRankLearnsOfOneRanksRequestAndNothingIsLeftOver) {
  const Communicator world = Communicator::world();
  JobStop stop(world);
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(stop.is_requested());
    world.barrier();
    if (world.rank() == round % world.size()) {
      stop.request();
    }
    while (!stop.is_requested()) {
    }
    stop.settle();
  }
}

TEST(JobStop, SeveralRanksMayAskAtOnce) {
  const Communicator world = Communicator::world();
  JobStop stop(world);
  stop.request();
  stop.request();
  EXPECT_TRUE(stop.is_requested());
  stop.settle();
  EXPECT_FALSE(stop.is_requested());
  world.barrier();
}

}  // namespace
}  // namespace quantmill
