#pragma once

// How long tasks keep the ranks of a node busy.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <vector>

namespace quantmill::test {

// Of tasks that free workers take in their order, if time is cost.
inline std::uint64_t makespan(std::span<const std::uint64_t> costs, int workers) {
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> free_at;
  for (int worker = 0; worker < workers; ++worker) {
    free_at.push(0);
  }
  std::uint64_t last = 0;
  for (const std::uint64_t cost : costs) {
    const std::uint64_t done = free_at.top() + cost;
    free_at.pop();
    free_at.push(done);
    last = std::max(last, done);
  }
  return last;
}

}  // namespace quantmill::test
