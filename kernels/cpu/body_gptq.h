#pragma once

// Private to kernels/cpu, included by isa_*.cpp only: rows side by side in lanes, places of the
// order a few at a time, so that a loss that was loaded serves all of them.

#include "kernels/cpu/entries.h"
#include "kernels/cpu/lanes.h"

namespace quantmill::cpu {
namespace {

// Takes the losses of places [0, begin) from kGptqPlaces places that begin there, and writes what
// is left of them.
template <std::size_t W>
[[gnu::always_inline]] inline void gptq_feed_back(const GptqTask& task) {
  using Float = typename Lanes<W>::Float;
  constexpr std::size_t kVectors = kGptqRowsTogether / W;
  Float left[kGptqPlaces][kVectors];
  for (std::size_t k = 0; k < kGptqPlaces; ++k) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      load(left[k][v], task.values + k * kGptqRowsTogether + v * W);
    }
  }
  for (std::size_t c = 0; c < task.begin; ++c) {
    Float losses[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      load(losses[v], task.losses + c * kGptqRowsTogether + v * W);
    }
    for (std::size_t k = 0; k < kGptqPlaces; ++k) {
      const Float factor = Float{} + task.factors[k * task.cols + c];
      for (std::size_t v = 0; v < kVectors; ++v) {
        left[k][v] -= losses[v] * factor;
      }
    }
  }
  for (std::size_t k = 0; k < kGptqPlaces; ++k) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      store(task.values + k * kGptqRowsTogether + v * W, left[k][v]);
    }
  }
}

}  // namespace
}  // namespace quantmill::cpu
