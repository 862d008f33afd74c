#pragma once

// The one order in which kernels add the 16 partial sums of a row.

#include <array>
#include <cstddef>

namespace quantmill {

constexpr std::size_t kSumLanes = 16;
using SumLanes = std::array<double, kSumLanes>;

// Halves folded onto each other: lane j + lane j+8, then j + j+4, j + j+2, j + j+1.
template <typename Value>
constexpr Value add_lanes(std::array<Value, kSumLanes> lanes) {
  for (std::size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) {
      lanes[j] += lanes[j + half];
    }
  }
  return lanes[0];
}

}  // namespace quantmill
