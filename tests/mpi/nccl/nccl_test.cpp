// src/comm/nccl.cpp as it is, on a made-up NCCL (tests/support/fake_nccl.h).

#include "comm/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/exchange.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/numbered_bytes.h"

namespace quantmill {
namespace {

using test::fake_nccl;
using test::numbered_bytes;
using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

class Nccl : public testing::Test {
 protected:
  void SetUp() override { fake_nccl() = {}; }

  [[nodiscard]] DeviceIdentity device() const {
    return {0, "GPU-" + std::to_string(world_.rank())};
  }

  Communicator world_ = Communicator::world();
};

// The error of `act`, whose code must be this.
Error error_of(ErrorCode code, const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(code, "");
}

void gather_one(NcclCommunicator& nccl, const Communicator& world) {
  const std::vector<std::uint64_t> lengths(static_cast<std::size_t>(world.size()), 10);
  nccl.reserve(10);
  const auto all = gather_in_pieces(
      lengths, numbered_bytes(10, 1), 10, [&](auto piece, auto to) { nccl.gather(piece, to); });
  EXPECT_THAT(all, testing::Each(numbered_bytes(10, 1)));
}

TEST_F(Nccl, GathersTheSameAsMpi) {
  for (const std::size_t piece_bytes : {100U, 512U, 1U << 20}) {
    fake_nccl().delay = piece_bytes == 512U ? 0 : 3;
    ExchangeLimits limits;
    limits.piece_bytes = piece_bytes;
    PartExchange exchange(world_, device(), limits);
    ASSERT_EQ(exchange.transport().is_nccl, world_.size() > 1);
    for (const std::size_t step : {0U, 1U, 700U}) {
      const auto rank = static_cast<std::size_t>(world_.rank());
      const auto mine = numbered_bytes(rank * step, rank);
      EXPECT_EQ(exchange.gather_all(mine), world_.gather_all(mine));
    }
  }
  EXPECT_EQ(fake_nccl().num_gathers > 0, world_.size() > 1);
}

TEST_F(Nccl, IsNamedWithItsGpus) {
  const PartExchange exchange(world_, device());
  EXPECT_EQ(exchange.describe(),
            world_.size() > 1 ? "over NCCL (" + std::to_string(world_.size()) + " GPUs)"
                              : "over MPI (one rank only)");
}

TEST_F(Nccl, EndsInGoodOrder) {
  {
    NcclCommunicator nccl(world_, device());
    gather_one(nccl, world_);
    EXPECT_EQ(fake_nccl().num_buffers, 1);
  }
  EXPECT_EQ(fake_nccl().num_inits, 1);
  EXPECT_EQ(fake_nccl().num_finalized, 1);
  EXPECT_EQ(fake_nccl().num_destroyed, 1);
  EXPECT_EQ(fake_nccl().num_aborted, 0);
  EXPECT_EQ(fake_nccl().num_buffers, 0);
  EXPECT_EQ(fake_nccl().num_streams, 0);
}

TEST_F(Nccl, AbortsWhileAnotherErrorIsInFlight) {
  error_of(ErrorCode::kInput, [&] {
    const NcclCommunicator nccl(world_, device());
    throw Error(ErrorCode::kInput, "a part is torn");
  });
  EXPECT_EQ(fake_nccl().num_aborted, 1);
  EXPECT_EQ(fake_nccl().num_finalized, 0);
  EXPECT_EQ(fake_nccl().num_streams, 0);
}

TEST_F(Nccl, AbortsWhatDoesNotFinalize) {
  fake_nccl().hanging = "ncclCommFinalize";
  { const NcclCommunicator nccl(world_, device(), 50ms); }
  EXPECT_EQ(fake_nccl().num_aborted, 1);
  EXPECT_EQ(fake_nccl().num_destroyed, 0);
}

TEST_F(Nccl, ReportsAnErrorWithWhatNcclSays) {
  fake_nccl().failing = "ncclAllGather";
  fake_nccl().delay = 2;
  NcclCommunicator nccl(world_, device());
  const Error error = error_of(ErrorCode::kComm, [&] { gather_one(nccl, world_); });
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("ncclAllGather failed: remote process exited"),
                    HasSubstr("connection closed by peer"),
                    HasSubstr("NCCL_DEBUG=INFO"),
                    HasSubstr("--backend cpu")));
  EXPECT_FALSE(error.is_agreed());
  EXPECT_EQ(fake_nccl().num_aborted, 1);
  EXPECT_EQ(fake_nccl().num_buffers, 1) << "freeing it could wait for ever";
}

TEST_F(Nccl, DoesNotWaitForEverForARankThatDoesNotGather) {
  fake_nccl().hanging = "ncclAllGather";
  NcclCommunicator nccl(world_, device(), 50ms);
  const Error error = error_of(ErrorCode::kComm, [&] { gather_one(nccl, world_); });
  EXPECT_THAT(error.message(), HasSubstr("ncclAllGather was not finished after 0.05 s"));
  EXPECT_EQ(fake_nccl().num_aborted, 1);
}

TEST_F(Nccl, DoesNotWaitForEverForTheStream) {
  fake_nccl().stream_hangs = true;
  NcclCommunicator nccl(world_, device(), 50ms);
  const Error error = error_of(ErrorCode::kComm, [&] { gather_one(nccl, world_); });
  EXPECT_THAT(error.message(), HasSubstr("ncclAllGather was not finished after 0.05 s"));
  EXPECT_EQ(fake_nccl().num_aborted, 1);
}

TEST_F(Nccl, DoesNotWaitForEverForARankThatDoesNotJoin) {
  fake_nccl().hanging = "ncclCommInitRankConfig";
  const Error error =
      error_of(ErrorCode::kComm, [&] { const NcclCommunicator nccl(world_, device(), 50ms); });
  EXPECT_THAT(error.message(), HasSubstr("ncclCommInitRankConfig was not finished after 0.05 s"));
  EXPECT_EQ(fake_nccl().num_aborted, 1);
}

TEST_F(Nccl, TooLittleMemoryOnOneGpuIsOneErrorEverywhere) {
  fake_nccl().out_of_memory = world_.rank() == world_.size() - 1;
  PartExchange exchange(world_, device());
  if (!exchange.transport().is_nccl) {
    return;
  }
  const Error error = error_of(
      ErrorCode::kDevice, [&] { static_cast<void>(exchange.gather_all(numbered_bytes(10, 0))); });
  EXPECT_TRUE(error.is_agreed());
  EXPECT_THAT(error.message(), AllOf(HasSubstr("GPU 0"), HasSubstr("out of memory")));
}

TEST_F(Nccl, AGpuThatIsNotThereIsOneErrorEverywhere) {
  const Error error = error_of(ErrorCode::kDevice, [&] {
    const NcclCommunicator nccl(world_, DeviceIdentity{9, "GPU-9"});
  });
  EXPECT_TRUE(error.is_agreed());
  EXPECT_EQ(fake_nccl().num_inits, 0);
}

}  // namespace
}  // namespace quantmill
