#pragma once

// Private to kernels/cpu, included by isa_*.cpp only.

#include "kernels/cpu/entries.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/mx_block.h"

namespace quantmill::cpu {
namespace {

template <std::size_t W>
[[gnu::always_inline]] inline void add_to_sums(double* sums,
                                               const typename Lanes<W>::Double& addend) {
  typename Lanes<W>::Double sum;
  load(sum, sums);
  sum += addend;
  store(sums, sum);
}

// Whole blocks of one row.
template <std::size_t W>
[[gnu::always_inline]] inline void add_row_magnitudes(const MagnitudeTask& task) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  using Double = typename Lanes<W>::Double;
  constexpr std::size_t kVectors = kBlockVectors<W>;
  constexpr std::size_t kLaneVectors = 2 * kSumLanes / W;
  Double lanes[kLaneVectors];
  for (std::size_t v = 0; v < kLaneVectors; ++v) {
    load(lanes[v], task.lanes + v * W / 2);
  }
  for (std::size_t begin = 0; begin < task.cols; begin += kMxBlock) {
    Float values[kVectors];
    Float magnitudes[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      Ints bits;
      load(bits, task.values + begin + v * W);
      values[v] = (Float)bits;
      magnitudes[v] = (Float)(bits & 0x7fffffff);
    }
    Ints amax;
    block_amax<W>(magnitudes, amax);
    const Ints smallest = Ints{} + 0x00800000;
    const Float inverse = 1.0F / (Float)(amax > smallest ? amax : smallest);
    for (std::size_t v = 0; v < kVectors; ++v) {
      const std::size_t column = begin + v * W;
      Float weights;
      load(weights, task.weights + column);
      Double low;
      Double high;
      widen<W>(values[v], low, high);
      add_to_sums<W>(task.squares + column, low * low);
      add_to_sums<W>(task.squares + column + W / 2, high * high);
      widen<W>(magnitudes[v] * inverse, low, high);
      add_to_sums<W>(task.shares + column, low);
      add_to_sums<W>(task.shares + column + W / 2, high);
      widen<W>(values[v] * weights, low, high);
      const std::size_t lane = 2 * v % kLaneVectors;
      lanes[lane] += low * low;
      lanes[lane + 1] += high * high;
    }
  }
  for (std::size_t v = 0; v < kLaneVectors; ++v) {
    store(task.lanes + v * W / 2, lanes[v]);
  }
}

}  // namespace
}  // namespace quantmill::cpu
