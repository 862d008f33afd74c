#pragma once

// Private to kernels/cpu, included by isa_*.cpp only.

#include "kernels/cpu/element.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/mx_block.h"

namespace quantmill::cpu {
namespace {

// The 16 sums p_j of mx.h, for one scale byte. Signs are left out: rounding, and so the error's
// magnitude, is the same for -x.
template <std::size_t W, ElementFormat F>
[[gnu::always_inline]] inline void squared_errors(
    const typename Lanes<W>::Float (&magnitudes)[kBlockVectors<W>],
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
    round_element<W, F, false>(magnitudes[v] * reciprocals, rounded);
    const Float error = (rounded.magnitude * scales - magnitudes[v]) * weights;
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
    const typename Lanes<W>::Float (&magnitudes)[kBlockVectors<W>],
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
    squared_errors<W, F>(magnitudes, importance, tried, other);
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

// The magnitudes of a block.
template <std::size_t W>
[[gnu::always_inline]] inline void load_magnitudes(
    const float* values, typename Lanes<W>::Float (&magnitudes)[kBlockVectors<W>]) {
  for (std::size_t v = 0; v < kBlockVectors<W>; ++v) {
    typename Lanes<W>::Ints bits;
    load(bits, values + v * W);
    magnitudes[v] = (typename Lanes<W>::Float)(bits & 0x7fffffff);
  }
}

// Blocks that find their scales before the first of them is encoded: what one waits for, another
// fills.
constexpr std::size_t kBlocksTogether = 8;

template <std::size_t W, ElementFormat F, bool IsSeed, bool IsSearched>
[[gnu::always_inline]] inline void quantize_some_blocks(const QuantizeTask& task,
                                                        std::size_t first,
                                                        std::size_t count) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  constexpr std::size_t kVectors = kBlockVectors<W>;
  Ints bytes[kBlocksTogether];
  for (std::size_t i = 0; i < count; ++i) {
    Float magnitudes[kVectors];
    load_magnitudes<W>(task.values + (first + i) * kMxBlock, magnitudes);
    Ints amax;
    block_amax<W>(magnitudes, amax);
    block_scale_bytes<W, F>(amax, task.carry, bytes[i]);
    if constexpr (IsSearched) {
      const float* importance = task.importance + (first + i) * kMxBlock;
      Float sums[kVectors / 2];
      squared_errors<W, F>(magnitudes, importance, bytes[i], sums);
      search_scale<W, F>(magnitudes, importance, bytes[i], sums);
    }
    task.scales[first + i] =
        amax[0] == 0 ? kZeroBlockScale : static_cast<std::uint8_t>(bytes[i][0]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const float* const values = task.values + (first + i) * kMxBlock;
    Float reciprocals;
    scale_reciprocals<W>(bytes[i], reciprocals);
    Ints codes[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      Ints bits;
      load(bits, values + v * W);
      Ints signs;
      place_signs<W, F>(bits, signs);
      Rounded<W> rounded;
      round_element<W, F, IsSeed>((Float)(bits & 0x7fffffff) * reciprocals, rounded);
      codes[v] = rounded.code | signs;
    }
    pack_block<W, F>(codes, task.packed + (first + i) * mx_packed_bytes(F, kMxBlock));
  }
}

template <std::size_t W, ElementFormat F, bool IsSeed, bool IsSearched>
[[gnu::always_inline]] inline void quantize_blocks(const QuantizeTask& task) {
  std::size_t block = 0;
  for (; block + kBlocksTogether <= task.num_blocks; block += kBlocksTogether) {
    quantize_some_blocks<W, F, IsSeed, IsSearched>(task, block, kBlocksTogether);
  }
  quantize_some_blocks<W, F, IsSeed, IsSearched>(task, block, task.num_blocks - block);
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

// Of mx_error_curve, for W rows: the sums in units of the scales' squares. `scaled` holds a column
// of the block in each vector.
template <std::size_t W, ElementFormat F, bool IsSeed>
[[gnu::always_inline]] inline void errors_in_steps(
    const typename Lanes<W>::Float (&scaled)[kMxBlock],
    const float* weights,
    const typename Lanes<W>::Ints& bytes,
    typename Lanes<W>::Float& sums) {
  using Float = typename Lanes<W>::Float;
  Float reciprocals;
  scale_reciprocals<W>(bytes, reciprocals);
  Float parts[4] = {};
  for (std::size_t c = 0; c < kMxBlock; c += 4) {
    for (std::size_t part = 0; part < 4; ++part) {
      const Float steps = scaled[c + part] * reciprocals;
      Rounded<W> rounded;
      round_element<W, F, IsSeed>(steps, rounded);
      const Float error = (rounded.magnitude - steps) * weights[c + part];
      parts[part] += error * error;
    }
  }
  sums = (parts[0] + parts[2]) + (parts[1] + parts[3]);
}

// ScaleRule::kMse: as search_scale, of the block that each lane has.
template <std::size_t W, ElementFormat F>
[[gnu::always_inline]] inline void search_scales(const typename Lanes<W>::Float (&scaled)[kMxBlock],
                                                 const float* weights,
                                                 typename Lanes<W>::Ints& bytes,
                                                 typename Lanes<W>::Float& sums) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  const Ints first = bytes;
  Ints least = (Ints)sums;
  for (std::size_t candidate = 1; candidate < kMxTriedExponents.size(); ++candidate) {
    const Ints zero = {};
    Ints tried = first + kMxTriedExponents[candidate];
    tried = tried > zero ? tried : zero;
    Float other;
    errors_in_steps<W, F, false>(scaled, weights, tried, other);
    const Float in_first_steps = other * (Float)((2 * (tried - first) + 127) << 23);
    const Ints error = (Ints)in_first_steps & 0x7fffffff;
    const Ints is_better = error < least;
    least = (error & is_better) | (least & ~is_better);
    bytes = (tried & is_better) | (bytes & ~is_better);
    sums = (Float)(((Ints)other & is_better) | ((Ints)sums & ~is_better));
  }
}

template <std::size_t W, ElementFormat F, bool IsSeed, bool IsSearched>
[[gnu::always_inline]] inline void add_block_errors(const CurveTask& task) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  using Double = typename Lanes<W>::Double;
  for (std::size_t group = 0; group < task.num_groups; ++group) {
    SumLanes lanes;
    for (std::size_t lane = 0; lane < kMxCurveRows; lane += W) {
      const float* magnitudes = task.magnitudes + group * kMxBlock * kMxCurveRows + lane;
      Float scaled[kMxBlock];
      Ints amax = {};
      for (std::size_t c = 0; c < kMxBlock; ++c) {
        Float column;
        load(column, magnitudes + c * kMxCurveRows);
        const Float product = column * task.s[c];
        amax = amax > (Ints)product ? amax : (Ints)product;
        scaled[c] = product;
      }
      Ints bytes;
      block_scale_bytes<W, F>(amax, task.carry, bytes);
      Float sums;
      errors_in_steps<W, F, IsSeed>(scaled, task.weights, bytes, sums);
      if constexpr (IsSearched) {
        search_scales<W, F>(scaled, task.weights, bytes, sums);
      }
      Float scales;
      scale_values<W>(bytes, scales);
      Double low;
      Double high;
      Double low_scales;
      Double high_scales;
      widen<W>(sums, low, high);
      widen<W>(scales, low_scales, high_scales);
      Double low_weights;
      Double high_weights;
      const double* row_weights = task.row_weights + group * kMxCurveRows + lane;
      load(low_weights, row_weights);
      load(high_weights, row_weights + W / 2);
      store(lanes.data() + lane, low * low_scales * low_scales * low_weights);
      store(lanes.data() + lane + W / 2, high * high_scales * high_scales * high_weights);
    }
    *task.sum += add_lanes(lanes);
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
[[gnu::always_inline]] inline void add_block_errors_any(const CurveTask& task) {
  if (task.is_seed) {
    return add_block_errors<W, ElementFormat::kE2m1, true, false>(task);
  }
  if (task.is_searched) {
    return for_element(task.element,
                       [&]<ElementFormat F>() { add_block_errors<W, F, false, true>(task); });
  }
  for_element(task.element, [&]<ElementFormat F>() { add_block_errors<W, F, false, false>(task); });
}

}  // namespace
}  // namespace quantmill::cpu
