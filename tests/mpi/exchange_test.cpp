#include "comm/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/numbered_bytes.h"

namespace quantmill {
namespace {

using test::numbered_bytes;
using testing::HasSubstr;

std::vector<RankReport> with_gpus(const std::vector<std::string>& gpus) {
  std::vector<RankReport> reports;
  for (const std::string& gpu : gpus) {
    reports.push_back({gpu, "", 22809});
  }
  return reports;
}

TEST(ChooseTransport, TakesNcclWhereEveryRankHasItsOwnGpu) {
  const Transport transport = choose_transport(with_gpus({"a", "b", "c"}));
  EXPECT_TRUE(transport.is_nccl);
  EXPECT_TRUE(transport.has_gpus);
  EXPECT_EQ(transport.reason, "");
}

TEST(ChooseTransport, SaysWhyItIsMpi) {
  const auto reason = [](const std::vector<RankReport>& ranks) {
    const Transport transport = choose_transport(ranks);
    EXPECT_FALSE(transport.is_nccl);
    return transport.reason;
  };
  EXPECT_EQ(reason(with_gpus({"a"})), "one rank only");
  EXPECT_EQ(reason(with_gpus({"", ""})), "no rank has a GPU");
  EXPECT_EQ(reason(with_gpus({"a", "b", ""})), "rank 2 has no GPU");
  EXPECT_EQ(reason(with_gpus({"a", "b", "c", "b"})), "ranks 1 and 3 share a GPU");
  EXPECT_EQ(reason({{"a", "built without NCCL", 0}, {"b", "built without NCCL", 0}}),
            "built without NCCL");
  EXPECT_EQ(reason({{"a", "", 22809}, {"b", "libnccl.so.2 is not there", 0}}),
            "rank 1: libnccl.so.2 is not there");
  EXPECT_EQ(reason({{"a", "", 22809}, {"b", "", 21903}}),
            "ranks 0 and 1 have NCCL 2.28.9 and 2.19.3");
}

TEST(ChooseTransport, KnowsWhetherMpiWasToBeExpected) {
  EXPECT_FALSE(choose_transport(with_gpus({"", ""})).has_gpus);
  EXPECT_TRUE(choose_transport(with_gpus({"", "a"})).has_gpus);
}

TEST(GatherInPieces, CutsLongBytesAndKeepsShortOnes) {
  const std::vector<std::uint64_t> lengths = {5, 0, 2};
  const auto mine = numbered_bytes(5, 0);
  std::vector<std::size_t> sizes;
  std::size_t sent = 0;
  const auto all = gather_in_pieces(lengths, mine, 2, [&](auto piece, auto to) {
    std::ranges::copy(piece, to[0].begin());
    sent += piece.size();
    for (const std::span<std::byte> slot : to) {
      sizes.push_back(slot.size());
    }
  });
  EXPECT_EQ(all[0], mine);
  EXPECT_EQ(sent, 5U);
  EXPECT_THAT(sizes, testing::ElementsAre(2, 0, 2, 2, 0, 0, 1, 0, 0));
}

TEST(GatherInPieces, ExchangesNothingWhereThereIsNothing) {
  const std::vector<std::uint64_t> lengths = {0, 0};
  const auto all = gather_in_pieces(
      lengths, {}, 8, [](auto, auto) { FAIL() << "there was nothing to exchange"; });
  EXPECT_THAT(all, testing::ElementsAre(testing::IsEmpty(), testing::IsEmpty()));
}

// Bytes of this rank, and what all ranks' should be.
void expect_gathered(PartExchange& exchange,
                     const std::function<std::size_t(std::size_t)>& length) {
  const auto rank = static_cast<std::size_t>(exchange.world().rank());
  const auto all = exchange.gather_all(numbered_bytes(length(rank), rank));
  ASSERT_EQ(all.size(), static_cast<std::size_t>(exchange.world().size()));
  for (std::size_t from = 0; from < all.size(); ++from) {
    EXPECT_EQ(all[from], numbered_bytes(length(from), from)) << from;
  }
}

TEST(PartExchange, GathersInRankOrderWhateverTheLengthsAndPieces) {
  const Communicator world = Communicator::world();
  for (const std::size_t piece_bytes : {1U, 3U, 64U, 1U << 20}) {
    ExchangeLimits limits;
    limits.piece_bytes = piece_bytes;
    PartExchange exchange(world, std::nullopt, limits);
    expect_gathered(exchange, [](std::size_t rank) { return 100 * rank + 1; });
    expect_gathered(exchange, [](std::size_t rank) { return rank == 0 ? 500U : 0U; });
    expect_gathered(exchange, [](std::size_t) { return 64; });
    expect_gathered(exchange, [](std::size_t) { return 0; });
  }
}

TEST(PartExchange, SharesOutTheMemoryOfAllPieces) {
  ExchangeLimits limits;
  limits.memory_bytes = 3;  // less than a byte for each of many ranks
  const Communicator world = Communicator::world();
  PartExchange exchange(world, std::nullopt, limits);
  expect_gathered(exchange, [](std::size_t rank) { return 10 + rank; });
}

TEST(PartExchange, IsOverMpiWithoutAReasonWhereNoRankHasAGpu) {
  const Communicator world = Communicator::world();
  const PartExchange exchange(world, std::nullopt);
  EXPECT_FALSE(exchange.transport().is_nccl);
  EXPECT_EQ(exchange.describe(), "over MPI");
}

TEST(PartExchange, RanksThatShareAGpuFallBackToMpi) {
  const Communicator world = Communicator::world();
  PartExchange exchange(world, DeviceIdentity{0, "GPU-0"});
  std::string wanted = "one rank only";
  if (world.size() > 1) {
    wanted = nccl_trouble().empty() ? "ranks 0 and 1 share a GPU" : nccl_trouble();
  }
  EXPECT_EQ(exchange.describe(), "over MPI (" + wanted + ")");
  expect_gathered(exchange, [](std::size_t rank) { return 7 * rank; });
}

TEST(PartExchange, ARankWithoutAGpuTakesAllToMpi) {
  const Communicator world = Communicator::world();
  const int last = world.size() - 1;
  std::optional<DeviceIdentity> device;
  if (world.rank() != last) {
    device = DeviceIdentity{0, "GPU-" + std::to_string(world.rank())};
  }
  PartExchange exchange(world, device);
  EXPECT_EQ(
      exchange.describe(),
      world.size() == 1 ? "over MPI" : "over MPI (rank " + std::to_string(last) + " has no GPU)");
  expect_gathered(exchange, [](std::size_t rank) { return 7 * rank; });
}

TEST(Nccl, SaysWhyItIsNotThere) {
  if (nccl_trouble().empty()) {
    EXPECT_GE(nccl_version(), 21400);
    return;
  }
  EXPECT_EQ(nccl_version(), 0);
  const Communicator world = Communicator::world();
  try {
    const NcclCommunicator nccl(world, DeviceIdentity{0, "GPU-0"});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kComm);
    EXPECT_THAT(error.message(), HasSubstr(nccl_trouble()));
  }
}

}  // namespace
}  // namespace quantmill
