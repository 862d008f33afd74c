// NCCL itself, with a GPU for each rank. Skips where there are too few, fails without any where
// QUANTMILL_REQUIRE_GPU=1.

#include "comm/nccl.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <string_view>

#include <gtest/gtest.h>

#include "comm/exchange.h"
#include "tests/support/numbered_bytes.h"

namespace quantmill {
namespace {

using test::numbered_bytes;

class NcclOnGpus : public testing::Test {
 protected:
  void SetUp() override {
    int num_gpus = 0;
    const cudaError_t result = cudaGetDeviceCount(&num_gpus);
    if (result != cudaSuccess) {
      num_gpus = 0;
    }
    const char* required = std::getenv("QUANTMILL_REQUIRE_GPU");
    if (num_gpus == 0 && required != nullptr && std::string_view(required) == "1") {
      FAIL() << "QUANTMILL_REQUIRE_GPU=1, but there is no GPU: " << cudaGetErrorString(result);
    }
    const Communicator node = world_.split_by_node(0);
    int is_enough = node.size() <= num_gpus ? 1 : 0;
    for (const auto& other : world_.gather_all(std::as_bytes(std::span(&is_enough, 1)))) {
      is_enough = other.front() == std::byte{0} ? 0 : is_enough;
    }
    if (is_enough == 0) {
      GTEST_SKIP() << node.size() << " ranks on a machine with " << num_gpus << " GPUs";
    }
    ASSERT_EQ(nccl_trouble(), "");
    cudaDeviceProp properties{};
    ASSERT_EQ(cudaGetDeviceProperties(&properties, node.rank()), cudaSuccess);
    device_ = {node.rank(), std::string(properties.uuid.bytes, sizeof properties.uuid.bytes)};
  }

  Communicator world_ = Communicator::world();
  DeviceIdentity device_;
};

TEST_F(NcclOnGpus, GatherTheSameAsMpi) {
  NcclCommunicator nccl(world_, device_);
  const auto rank = static_cast<std::size_t>(world_.rank());
  for (const std::size_t step : {0U, 1U, 700U, 5'000'000U}) {
    const auto mine = numbered_bytes((rank + 1) * step, rank);
    const auto wanted = world_.gather_all(mine);
    std::vector<std::uint64_t> lengths;
    for (const auto& bytes : wanted) {
      lengths.push_back(bytes.size());
    }
    for (const std::size_t piece_bytes : {std::size_t{100'000}, std::size_t{64} << 20}) {
      nccl.reserve(piece_bytes);
      EXPECT_EQ(
          gather_in_pieces(
              lengths, mine, piece_bytes, [&](auto piece, auto to) { nccl.gather(piece, to); }),
          wanted);
    }
  }
}

TEST_F(NcclOnGpus, AreChosenForPartsOfSeveralRanks) {
  PartExchange exchange(world_, device_);
  EXPECT_EQ(exchange.transport().is_nccl, world_.size() > 1) << exchange.describe();
  const auto rank = static_cast<std::size_t>(world_.rank());
  const auto mine = numbered_bytes(1000 * rank, rank);
  EXPECT_EQ(exchange.gather_all(mine), world_.gather_all(mine));
}

}  // namespace
}  // namespace quantmill
