#pragma once

// Private to kernels/cpu, included by isa_*.cpp only.

#include "kernels/cpu/element.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/mx_block.h"

namespace quantmill::cpu {
namespace {

template <std::size_t W, ElementFormat F, bool IsSeed>
[[gnu::always_inline]] inline void quantize_blocks(const QuantizeTask& task) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  constexpr std::size_t kVectors = kBlockVectors<W>;
  for (std::size_t block = 0; block < task.num_blocks; ++block) {
    Ints signs[kVectors];
    Float magnitudes[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      Ints bits;
      load(bits, task.values + block * kMxBlock + v * W);
      magnitudes[v] = (Float)(bits & 0x7fffffff);
      place_signs<W, F>(bits, signs[v]);
    }
    Ints amax;
    block_amax<W>(magnitudes, amax);
    Ints bytes;
    block_scale_bytes<W, F>(amax, task.carry, bytes);
    Float reciprocals;
    scale_reciprocals<W>(bytes, reciprocals);
    task.scales[block] = amax[0] == 0 ? kZeroBlockScale : static_cast<std::uint8_t>(bytes[0]);
    Ints codes[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      Rounded<W> rounded;
      round_element<W, F, IsSeed>(magnitudes[v] * reciprocals, rounded);
      codes[v] = rounded.code | signs[v];
    }
    pack_block<W, F>(codes, task.packed + block * mx_packed_bytes(F, kMxBlock));
  }
}

template <std::size_t W, ElementFormat F>
[[gnu::always_inline]] inline void dequantize_blocks(const DequantizeTask& task) {
  for (std::size_t block = 0; block < task.num_blocks; ++block) {
    const float scale = decode_e8m0(task.scales[block]);
    const std::uint8_t* codes = task.packed + block * mx_packed_bytes(F, kMxBlock);
    std::uint8_t bytes[kMxBlock];
    if constexpr (element_bits(F) == 6) {
      unpack_sextets(codes, bytes);
      codes = bytes;
    }
    for (std::size_t v = 0; v < kBlockVectors<W>; ++v) {
      typename Lanes<W>::Float values;
      decode_values<W, F>(codes, v, values);
      store(task.values + block * kMxBlock + v * W, values * scale);
    }
  }
}

// Signs are left out: rounding, and so the error's magnitude, is the same for -x.
template <std::size_t W, ElementFormat F, bool IsSeed>
[[gnu::always_inline]] inline void add_segment(const CurveTask& task) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  using Double = typename Lanes<W>::Double;
  constexpr std::size_t kVectors = kBlockVectors<W>;
  Double lanes[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    load(lanes[v], task.lanes + v * W / 2);
  }
  for (std::size_t begin = 0; begin < task.cols; begin += kMxBlock) {
    Float magnitudes[kVectors];
    Float scaled[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      Ints bits;
      Float s;
      load(bits, task.values + begin + v * W);
      load(s, task.s + begin + v * W);
      magnitudes[v] = (Float)(bits & 0x7fffffff);
      scaled[v] = magnitudes[v] * s;
    }
    Ints amax;
    block_amax<W>(scaled, amax);
    Ints bytes;
    block_scale_bytes<W, F>(amax, task.carry, bytes);
    Float reciprocals;
    Float scales;
    scale_reciprocals<W>(bytes, reciprocals);
    scale_values<W>(bytes, scales);
    Float squares[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      Float inverse;
      Float importance;
      load(inverse, task.inverse + begin + v * W);
      load(importance, task.importance + begin + v * W);
      Rounded<W> rounded;
      round_element<W, F, IsSeed>(scaled[v] * reciprocals, rounded);
      const Float error = (rounded.magnitude * scales * inverse - magnitudes[v]) * importance;
      squares[v] = error * error;
    }
    for (std::size_t v = 0; v < kVectors / 2; ++v) {
      Double low;
      Double high;
      widen<W>(squares[v] + squares[v + kVectors / 2], low, high);
      lanes[2 * v] += low;
      lanes[2 * v + 1] += high;
    }
  }
  for (std::size_t v = 0; v < kVectors; ++v) {
    store(task.lanes + v * W / 2, lanes[v]);
  }
}

// Calls body.operator()<format>() for the format that a task names.
template <typename Body>
[[gnu::always_inline]] inline void for_element(ElementFormat element, Body body) {
  switch (element) {
    case ElementFormat::kE2m1:
      return body.template operator()<ElementFormat::kE2m1>();
    case ElementFormat::kE2m3:
      return body.template operator()<ElementFormat::kE2m3>();
    case ElementFormat::kE3m2:
      return body.template operator()<ElementFormat::kE3m2>();
    case ElementFormat::kE4m3:
      return body.template operator()<ElementFormat::kE4m3>();
    case ElementFormat::kE5m2:
      return body.template operator()<ElementFormat::kE5m2>();
  }
}

template <std::size_t W>
[[gnu::always_inline]] inline void quantize_blocks_any(const QuantizeTask& task) {
  if (task.is_seed) {
    return quantize_blocks<W, ElementFormat::kE2m1, true>(task);
  }
  for_element(task.element, [&]<ElementFormat F>() { quantize_blocks<W, F, false>(task); });
}

template <std::size_t W>
[[gnu::always_inline]] inline void dequantize_blocks_any(const DequantizeTask& task) {
  for_element(task.element, [&]<ElementFormat F>() { dequantize_blocks<W, F>(task); });
}

template <std::size_t W>
[[gnu::always_inline]] inline void add_segment_any(const CurveTask& task) {
  if (task.is_seed) {
    return add_segment<W, ElementFormat::kE2m1, true>(task);
  }
  for_element(task.element, [&]<ElementFormat F>() { add_segment<W, F, false>(task); });
}

}  // namespace
}  // namespace quantmill::cpu
