#pragma once

// Private to kernels/cpu, included by isa_*.cpp only.

#include "kernels/cpu/element.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/mx_block.h"

namespace quantmill::cpu {
namespace {

// The 16 sums p_j of mx.h, for one scale byte. Signs are left out: rounding, and so the error's
// magnitude, is the same for -x. `inverse` is null where the values are not scaled.
template <std::size_t W, ElementFormat F, bool IsSeed>
[[gnu::always_inline]] inline void squared_errors(
    const typename Lanes<W>::Float (&scaled)[kBlockVectors<W>],
    const typename Lanes<W>::Float (&magnitudes)[kBlockVectors<W>],
    const float* inverse,
    const float* importance,
    const typename Lanes<W>::Ints& bytes,
    typename Lanes<W>::Float (&sums)[kBlockVectors<W> / 2]) {
  using Float = typename Lanes<W>::Float;
  constexpr std::size_t kVectors = kBlockVectors<W>;
  Float reciprocals;
  Float scales;
  scale_reciprocals<W>(bytes, reciprocals);
  scale_values<W>(bytes, scales);
  Float squares[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    Float weights;
    load(weights, importance + v * W);
    Rounded<W> rounded;
    round_element<W, F, IsSeed>(scaled[v] * reciprocals, rounded);
    Float got = rounded.magnitude * scales;
    if (inverse != nullptr) {
      Float factors;
      load(factors, inverse + v * W);
      got *= factors;
    }
    const Float error = (got - magnitudes[v]) * weights;
    squares[v] = error * error;
  }
  for (std::size_t v = 0; v < kVectors / 2; ++v) {
    sums[v] = squares[v] + squares[v + kVectors / 2];
  }
}

// ScaleRule::kMse: `bytes` holds the first candidate and `sums` its squared_errors; both become
// those of the best. Errors are compared as integers, without the sign that a NaN may have: that of
// a candidate whose values overflow is then larger than any other.
template <std::size_t W, ElementFormat F>
[[gnu::always_inline]] inline void search_scale(
    const typename Lanes<W>::Float (&scaled)[kBlockVectors<W>],
    const typename Lanes<W>::Float (&magnitudes)[kBlockVectors<W>],
    const float* inverse,
    const float* importance,
    typename Lanes<W>::Ints& bytes,
    typename Lanes<W>::Float (&sums)[kBlockVectors<W> / 2]) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  constexpr std::size_t kHalf = kBlockVectors<W> / 2;
  const Ints first = bytes;
  Float folded[kHalf];
  std::memcpy(folded, sums, sizeof folded);
  spread_sum<W>(folded);
  Ints least = (Ints)folded[0] & 0x7fffffff;
  for (std::size_t candidate = 1; candidate < kMxTriedExponents.size(); ++candidate) {
    const Ints zero = {};
    Ints tried = first + kMxTriedExponents[candidate];
    tried = tried > zero ? tried : zero;
    Float other[kHalf];
    squared_errors<W, F, false>(scaled, magnitudes, inverse, importance, tried, other);
    std::memcpy(folded, other, sizeof folded);
    spread_sum<W>(folded);
    const Ints error = (Ints)folded[0] & 0x7fffffff;
    const Ints is_better = error < least;
    least = (error & is_better) | (least & ~is_better);
    bytes = (tried & is_better) | (bytes & ~is_better);
    for (std::size_t v = 0; v < kHalf; ++v) {
      sums[v] = (Float)(((Ints)other[v] & is_better) | ((Ints)sums[v] & ~is_better));
    }
  }
}

template <std::size_t W, ElementFormat F, bool IsSeed, bool IsSearched>
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
    if constexpr (IsSearched) {
      const float* importance = task.importance + block * kMxBlock;
      Float sums[kVectors / 2];
      squared_errors<W, F, false>(magnitudes, magnitudes, nullptr, importance, bytes, sums);
      search_scale<W, F>(magnitudes, magnitudes, nullptr, importance, bytes, sums);
    }
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

template <std::size_t W, ElementFormat F, bool IsSeed, bool IsSearched>
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
    const float* inverse = task.inverse + begin;
    const float* importance = task.importance + begin;
    Float sums[kVectors / 2];
    squared_errors<W, F, IsSeed>(scaled, magnitudes, inverse, importance, bytes, sums);
    if constexpr (IsSearched) {
      search_scale<W, F>(scaled, magnitudes, inverse, importance, bytes, sums);
    }
    for (std::size_t v = 0; v < kVectors / 2; ++v) {
      Double low;
      Double high;
      widen<W>(sums[v], low, high);
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
    return quantize_blocks<W, ElementFormat::kE2m1, true, false>(task);
  }
  if (task.importance != nullptr) {
    return for_element(task.element,
                       [&]<ElementFormat F>() { quantize_blocks<W, F, false, true>(task); });
  }
  for_element(task.element, [&]<ElementFormat F>() { quantize_blocks<W, F, false, false>(task); });
}

template <std::size_t W>
[[gnu::always_inline]] inline void dequantize_blocks_any(const DequantizeTask& task) {
  for_element(task.element, [&]<ElementFormat F>() { dequantize_blocks<W, F>(task); });
}

template <std::size_t W>
[[gnu::always_inline]] inline void add_segment_any(const CurveTask& task) {
  if (task.is_seed) {
    return add_segment<W, ElementFormat::kE2m1, true, false>(task);
  }
  if (task.is_searched) {
    return for_element(task.element,
                       [&]<ElementFormat F>() { add_segment<W, F, false, true>(task); });
  }
  for_element(task.element, [&]<ElementFormat F>() { add_segment<W, F, false, false>(task); });
}

}  // namespace
}  // namespace quantmill::cpu
