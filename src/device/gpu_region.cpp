#include "device/gpu_region.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace quantmill {

GpuRegion::GpuRegion(std::size_t bytes) {
  if (bytes > 0) {
    gaps_.emplace(0, bytes);
  }
}

std::optional<std::size_t> GpuRegion::take(std::size_t bytes) {
  const std::size_t rounded =
      (std::max<std::size_t>(1, bytes) + kAlignment - 1) / kAlignment * kAlignment;
  const auto gap =
      std::ranges::find_if(gaps_, [&](const auto& entry) { return entry.second >= rounded; });
  if (gap == gaps_.end()) {
    return std::nullopt;
  }
  const auto [offset, size] = *gap;
  gaps_.erase(gap);
  if (size > rounded) {
    gaps_.emplace(offset + rounded, size - rounded);
  }
  taken_.emplace(offset, rounded);
  return offset;
}

void GpuRegion::release(std::size_t offset) {
  const auto found = taken_.find(offset);
  check_invariant(found != taken_.end(), "memory of the GPU is released twice");
  std::size_t begin = offset;
  std::size_t size = found->second;
  taken_.erase(found);
  const auto after = gaps_.find(begin + size);
  if (after != gaps_.end()) {
    size += after->second;
    gaps_.erase(after);
  }
  const auto next = gaps_.lower_bound(begin);
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      size += before->second;
      gaps_.erase(before);
    }
  }
  gaps_.emplace(begin, size);
}

std::size_t GpuRegion::free_bytes() const {
  std::size_t sum = 0;
  for (const auto& [offset, size] : gaps_) {
    sum += size;
  }
  return sum;
}

std::size_t GpuRegion::largest_gap() const {
  std::size_t largest = 0;
  for (const auto& [offset, size] : gaps_) {
    largest = std::max(largest, size);
  }
  return largest;
}

}  // namespace quantmill
