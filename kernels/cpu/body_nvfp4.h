#pragma once

// Private to kernels/cpu, included by isa_*.cpp only: NVFP4 in pairs of blocks, which are as many
// elements as a block of MXFP4.

#include "kernels/cpu/element.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/mx_block.h"

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
