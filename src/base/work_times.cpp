#include "base/work_times.h"

#include <atomic>

namespace quantmill {
namespace {

// The process has one account of its threads' time, and each thread one timer that runs.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
std::array<std::atomic<std::uint64_t>, kNumWorks> total_nanoseconds;
std::atomic<std::uint64_t> total_read;
std::atomic<std::uint64_t> total_written;
thread_local WorkTimer* innermost = nullptr;

// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

void count(Work work, std::chrono::steady_clock::duration time) noexcept {
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  total_nanoseconds[static_cast<std::size_t>(work)].fetch_add(
      static_cast<std::uint64_t>(nanoseconds), std::memory_order_relaxed);
}

}  // namespace

WorkTimes work_times() {
  WorkTimes times;
  for (std::size_t work = 0; work < kNumWorks; ++work) {
    times.nanoseconds[work] = total_nanoseconds[work].load(std::memory_order_relaxed);
  }
  times.bytes_read = total_read.load(std::memory_order_relaxed);
  times.bytes_written = total_written.load(std::memory_order_relaxed);
  return times;
}

WorkTimer::WorkTimer(Work work, std::uint64_t bytes) noexcept
    : work_(work), outer_(innermost), since_(std::chrono::steady_clock::now()) {
  if (outer_ != nullptr) {
    count(outer_->work_, since_ - outer_->since_);
  }
  if (work == Work::kRead) {
    total_read.fetch_add(bytes, std::memory_order_relaxed);
  } else if (work == Work::kWrite) {
    total_written.fetch_add(bytes, std::memory_order_relaxed);
  }
  innermost = this;
}

WorkTimer::~WorkTimer() {
  const auto now = std::chrono::steady_clock::now();
  count(work_, now - since_);
  innermost = outer_;
  if (outer_ != nullptr) {
    outer_->since_ = now;
  }
}

}  // namespace quantmill
