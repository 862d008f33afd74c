#include "pipeline/page_cache.h"

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

namespace quantmill {
namespace {

constexpr std::uint64_t kGb = 1'000'000'000;

// "when done", "source at once", "output at once", as 0 and 1.
std::string drops(PageCache wanted, std::uint64_t source_gb, std::uint64_t output_gb) {
  const PageDrops found = page_drops(wanted, source_gb * kGb, output_gb * kGb, 512 * kGb);
  return std::to_string(static_cast<int>(found.when_done)) +
         std::to_string(static_cast<int>(found.source_at_once)) +
         std::to_string(static_cast<int>(found.output_at_once));
}

TEST(PageCache, AutoKeepsWhatFitsIntoHalfOfTheMemory) {
  EXPECT_EQ(drops(PageCache::kAuto, 200, 56), "000");
  EXPECT_EQ(drops(PageCache::kAuto, 200, 57), "100");
}

TEST(PageCache, AutoDropsAtOnceWhatDoesNotFitAlone) {
  EXPECT_EQ(drops(PageCache::kAuto, 256, 70), "100");
  EXPECT_EQ(drops(PageCache::kAuto, 257, 70), "110");
  EXPECT_EQ(drops(PageCache::kAuto, 1000, 280), "111");
}

TEST(PageCache, KeepAndDropDoNotLookAtSizes) {
  EXPECT_EQ(drops(PageCache::kKeep, 1000, 280), "000");
  EXPECT_EQ(drops(PageCache::kDrop, 1, 1), "111");
}

TEST(PageCache, ThisMachineHasMemory) {
  EXPECT_GT(physical_memory_bytes(), kGb / 10);
}

}  // namespace
}  // namespace quantmill
