// Memory and queues of a GPU, on one that is emulated.

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/emulated_gpu.h"
#include "device/gpu.h"
#include "device/gpu_region.h"
#include "kernels/mx.h"
#include "kernels/scale.h"

namespace quantmill {
namespace {

constexpr std::size_t kMemory = 4 * Gpu::kSmallestBytes;

TEST(GpuRegion, GivesTheFirstGapThatIsLargeEnough) {
  GpuRegion region(1024);
  EXPECT_EQ(region.take(1), 0);
  EXPECT_EQ(region.take(257), 256);
  EXPECT_EQ(region.take(512), std::nullopt);
  EXPECT_EQ(region.take(0), 768);
  EXPECT_EQ(region.free_bytes(), 0);
  region.release(256);
  EXPECT_EQ(region.largest_gap(), 512);
  EXPECT_EQ(region.take(512), 256);
}

TEST(GpuRegion, JoinsGapsOnBothSides) {
  GpuRegion region(1024);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(region.take(256), i * 256);
  }
  region.release(0);
  region.release(512);
  EXPECT_EQ(region.largest_gap(), 256);
  region.release(256);
  EXPECT_EQ(region.largest_gap(), 768);
  EXPECT_EQ(region.take(768), 0);
  EXPECT_THROW(region.release(256), Error);
}

TEST(Gpu, CopiesThereAndBack) {
  Gpu gpu(open_emulated_gpu(0, kMemory), kMemory, 2);
  std::vector<std::byte> bytes(1000);
  std::memset(bytes.data(), 7, bytes.size());
  const GpuLane lane = gpu.lane();
  std::byte* const device = gpu.allocate(bytes.size());
  EXPECT_TRUE(gpu.holds(device));
  EXPECT_FALSE(gpu.holds(bytes.data()));
  lane.queue().upload(device, bytes);
  lane.queue().upload(device, std::vector<std::byte>(500));
  std::vector<std::byte> back(bytes.size());
  lane.queue().download(back, device);
  EXPECT_EQ(back[499], std::byte{0});
  EXPECT_EQ(back[500], std::byte{7});
  std::byte* const other = gpu.allocate(bytes.size());
  lane.queue().copy({other, bytes.size()}, device);
  std::vector<std::byte> copied(bytes.size());
  lane.queue().download(copied, other);
  EXPECT_EQ(copied, back);
  gpu.release(other);
  gpu.release(device);
}

TEST(GpuDeathTest, MemoryOfTheDeviceIsNotTheHosts) {
  Gpu gpu(open_emulated_gpu(0, kMemory), kMemory, 1);
  volatile std::byte* const device = gpu.allocate(1);
  EXPECT_DEATH((void)static_cast<int>(*device), "");
}

TEST(Gpu, SaysWhatIsTooSmall) {
  Gpu gpu(open_emulated_gpu(0, kMemory), kMemory, 1);
  std::byte* const first = gpu.allocate(kMemory / 4);
  try {
    (void)gpu.allocate(kMemory / 2);
    FAIL() << "more than there is";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_THAT(error.message(), testing::HasSubstr("raise --gpu-memory (now 32.0 MiB)"));
  }
  gpu.release(first);
  GpuLane lane = gpu.lane();
  EXPECT_THROW((void)lane.take(kMemory), Error);
}

TEST(Gpu, TakesLessWhereLessIsFree) {
  const Gpu gpu(open_emulated_gpu(0, 3 * kMemory / 2), kMemory * 8, 1);
  EXPECT_EQ(gpu.memory_bytes(), 3 * kMemory / 2);
}

TEST(Gpu, ThreadsWaitForALane) {
  Gpu gpu(open_emulated_gpu(0, kMemory), kMemory, 2);
  std::atomic<int> inside = 0;
  std::atomic<int> most = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 50; ++turn) {
        const GpuLane lane = gpu.lane();
        const int now = ++inside;
        int seen = most;
        while (seen < now && !most.compare_exchange_weak(seen, now)) {
        }
        --inside;
      }
    });
  }
  threads.clear();
  EXPECT_GE(most, 1);
  EXPECT_LE(most, 2);
}

// What lies on the device stays there from kernel to kernel, and is the same as on the host.
TEST(Gpu, KernelsWorkOnBuffersInPlace) {
  Gpu gpu(open_emulated_gpu(0, kMemory), kMemory, 1);
  const Context context{Backend::kGpu, best_isa(), &gpu};
  const Context reference{Backend::kReference, Isa::kPlain};
  constexpr std::size_t kRows = 5;
  constexpr std::size_t kCols = 64;
  std::vector<float> values(kRows * kCols);
  std::iota(values.begin(), values.end(), -100.0F);
  std::vector<float> factors(kCols, 0.75F);
  auto* const device = reinterpret_cast<float*>(gpu.allocate(values.size() * sizeof(float)));
  gpu.lane().queue().upload(reinterpret_cast<std::byte*>(device), std::as_bytes(std::span(values)));
  std::vector<std::uint8_t> packed(kRows * kCols / 2);
  std::vector<std::uint8_t> scales(kRows * kCols / kMxBlock);
  scale_matrix(context, FloatMatrix{device, kRows, kCols}, {.columns = factors});
  mx_quantize(context, {}, FloatMatrix{device, kRows, kCols}, packed, scales);
  std::vector<std::uint8_t> wanted_packed(packed.size());
  std::vector<std::uint8_t> wanted_scales(scales.size());
  scale_matrix(reference, FloatMatrix{values.data(), kRows, kCols}, {.columns = factors});
  mx_quantize(
      reference, {}, FloatMatrix{values.data(), kRows, kCols}, wanted_packed, wanted_scales);
  EXPECT_EQ(packed, wanted_packed);
  EXPECT_EQ(scales, wanted_scales);
}

}  // namespace
}  // namespace quantmill
