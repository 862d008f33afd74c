#pragma once

// What the threads of this process spend their time on, and how much they read and write: counters
// of the whole process, for what a job tells of itself. Nothing is decided by them.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace quantmill {

enum class Work : std::size_t { kRead, kDecode, kSearch, kEncode, kWrite };

inline constexpr std::size_t kNumWorks = 5;

struct WorkTimes {
  std::array<std::uint64_t, kNumWorks> nanoseconds{};  // by Work, of all threads together
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
};

// Everything since the process began. Thread-safe.
WorkTimes work_times();

// Counts the time from here to its end. One inside another takes its time away from the outer one,
// so that no moment of a thread counts twice. Use it as a local variable only.
class WorkTimer {
 public:
  // bytes: that are read (kRead) or written (kWrite) meanwhile.
  explicit WorkTimer(Work work, std::uint64_t bytes = 0) noexcept;
  ~WorkTimer();
  WorkTimer(const WorkTimer&) = delete;
  WorkTimer& operator=(const WorkTimer&) = delete;

 private:
  Work work_;
  WorkTimer* outer_;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace quantmill
