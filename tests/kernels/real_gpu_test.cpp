// Memory and queues of a real GPU. Skips where there is none, fails where QUANTMILL_REQUIRE_GPU=1:
// so a run of all that needs one can't pass without. What kernels compute on it is in the tests of
// each, whose parameter is "cuda".

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/context.h"
#include "device/cuda_gpu.h"
#include "kernels/mx.h"
#include "tests/kernels/random_matrix.h"

namespace quantmill {
namespace {

constexpr std::size_t kMemory = std::size_t{128} << 20;

class RealGpu : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (count_cuda_gpus(reason) > 0) {
      return;
    }
    const char* required = std::getenv("QUANTMILL_REQUIRE_GPU");
    if (required != nullptr && std::string_view(required) == "1") {
      FAIL() << "QUANTMILL_REQUIRE_GPU=1, but there is no GPU: " << reason;
    }
    GTEST_SKIP() << "no GPU to test: " << reason;
  }
};

TEST_F(RealGpu, SaysWhichItIs) {
  const auto driver = open_cuda_gpu(0);
  EXPECT_THAT(driver->name(), testing::EndsWith(" (GPU 0)"));
  EXPECT_THAT(driver->identity(), testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(driver->identity().size(), 32);
  EXPECT_EQ(driver->identity(), open_cuda_gpu(0)->identity());
  EXPECT_FALSE(driver->is_emulated());
  EXPECT_GT(driver->free_bytes(), 0);
}

// More than both pinned buffers hold, and not a multiple of them.
TEST_F(RealGpu, CopiesThereAndBack) {
  Gpu gpu(open_cuda_gpu(0), kMemory, 2);
  std::vector<std::byte> bytes((std::size_t{11} << 20) + 3);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i % 251);
  }
  std::byte* const device = gpu.allocate(bytes.size());
  std::byte* const other = gpu.allocate(bytes.size());
  EXPECT_TRUE(gpu.holds(device));
  const GpuLane lane = gpu.lane();
  std::vector<std::byte> sent = bytes;
  lane.queue().upload(device, sent);
  std::memset(sent.data(), 0, sent.size());  // it can change at once
  lane.queue().copy({other, bytes.size()}, device);
  lane.queue().upload(device, sent);
  std::vector<std::byte> back(bytes.size());
  lane.queue().download(back, other);
  EXPECT_EQ(back, bytes);
  lane.queue().download(back, device);
  EXPECT_EQ(back, std::vector<std::byte>(bytes.size()));
  lane.queue().finish("a test");
  gpu.release(device);
  gpu.release(other);
}

// More threads than lanes, each with rows of its own, some of them in pieces.
TEST_F(RealGpu, ThreadsShareIt) {
  Gpu gpu(open_cuda_gpu(0), 4 * Gpu::kSmallestBytes, 2);
  const Context context{Backend::kGpu, best_isa(), &gpu};
  constexpr std::size_t kRows = 700;
  constexpr std::size_t kCols = 4096;
  std::mt19937 random(test::kSeed);
  test::Matrix values(kRows, kCols);
  test::fill(values, test::Content::kOrdinary, random);
  std::vector<std::uint8_t> wanted_packed(kRows * kCols / 2);
  std::vector<std::uint8_t> wanted_scales(kRows * kCols / kMxBlock);
  mx_quantize({Backend::kCpu, best_isa()}, {}, values.view(), wanted_packed, wanted_scales);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 5; ++turn) {
        std::vector<std::uint8_t> packed(wanted_packed.size());
        std::vector<std::uint8_t> scales(wanted_scales.size());
        mx_quantize(context, {}, values.view(), packed, scales);
        EXPECT_EQ(packed, wanted_packed);
        EXPECT_EQ(scales, wanted_scales);
      }
    });
  }
}

}  // namespace
}  // namespace quantmill
