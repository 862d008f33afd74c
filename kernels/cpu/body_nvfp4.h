#pragma once

// Private to kernels/cpu, included by isa_*.cpp only: NVFP4 in pairs of blocks, which are as many
// elements as a block of MXFP4.

#include "kernels/cpu/element.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/mx_block.h"
#include "kernels/nvfp4.h"

namespace quantmill::cpu {
namespace {

// The block of a pair that vector v of W lanes belongs to.
template <std::size_t W>
constexpr std::size_t block_of_vector(std::size_t v) {
  return v * W / 16;
}

template <std::size_t W>
[[gnu::always_inline]] inline void nvfp4_quantize_pairs(const Nvfp4QuantizeTask& task) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  constexpr std::size_t kVectors = kBlockVectors<W>;
  for (std::size_t pair = 0; pair < task.num_pairs; ++pair) {
    Ints codes[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      const float divisor = task.divisors[task.scales[2 * pair + block_of_vector<W>(v)]];
      Ints bits;
      load(bits, task.values + pair * kMxBlock + v * W);
      const Float magnitudes = (Float)(bits & 0x7fffffff);
      Rounded<W> rounded;
      round_element<W, ElementFormat::kE2m1, false>(magnitudes / divisor, rounded);
      place_signs<W, ElementFormat::kE2m1>(bits, codes[v]);
      codes[v] |= rounded.code;
    }
    pack_block<W, ElementFormat::kE2m1>(codes, task.packed + pair * 16);
  }
}

// The error of nvfp4_search_scales for one scale byte of one block.
template <std::size_t W>
[[gnu::always_inline]] inline float nvfp4_block_error(const Nvfp4SearchTask& task,
                                                      std::size_t begin,
                                                      std::size_t scale) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  Float squares[16 / W];
  for (std::size_t v = 0; v < 16 / W; ++v) {
    Ints bits;
    Float importance;
    load(bits, task.values + begin + v * W);
    load(importance, task.importance + begin + v * W);
    const Float magnitudes = (Float)(bits & 0x7fffffff);
    Rounded<W> rounded;
    round_element<W, ElementFormat::kE2m1, false>(magnitudes / task.divisors[scale], rounded);
    const Float error = (rounded.magnitude * task.factors[scale] - magnitudes) * importance;
    squares[v] = error * error;
  }
  spread_sum<W>(squares);
  return squares[0][0];
}

template <std::size_t W>
[[gnu::always_inline]] inline void nvfp4_search_blocks(const Nvfp4SearchTask& task) {
  for (std::size_t block = 0; block < task.num_blocks; ++block) {
    const std::size_t begin = block * kNvfp4Block;
    const int first = task.scales[block];
    float least = nvfp4_block_error<W>(task, begin, task.scales[block]);
    for (std::size_t i = 1; i < kNvfp4TriedSteps.size(); ++i) {
      int tried = first + kNvfp4TriedSteps[i];
      tried = tried < 1 ? 1 : tried > 0x7e ? 0x7e : tried;
      const float error = nvfp4_block_error<W>(task, begin, static_cast<std::size_t>(tried));
      if (error < least) {
        least = error;
        task.scales[block] = static_cast<std::uint8_t>(tried);
      }
    }
  }
}

// Whether all are finite.
template <std::size_t W>
[[gnu::always_inline]] inline bool nvfp4_dequantize_pairs(const Nvfp4DequantizeTask& task) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  Ints largest = {};
  for (std::size_t pair = 0; pair < task.num_pairs; ++pair) {
    for (std::size_t v = 0; v < kBlockVectors<W>; ++v) {
      const float factor = task.factors[task.scales[2 * pair + block_of_vector<W>(v)]];
      Float values;
      decode_values<W, ElementFormat::kE2m1>(task.packed + pair * 16, v, values);
      const Float products = values * factor;
      store(task.values + pair * kMxBlock + v * W, products);
      const Ints exponents = (Ints)products & 0x7f800000;
      largest = largest > exponents ? largest : exponents;
    }
  }
  spread_max<W>(largest);
  return largest[0] != 0x7f800000;
}

}  // namespace
}  // namespace quantmill::cpu
