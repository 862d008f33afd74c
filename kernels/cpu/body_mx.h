#pragma once

// Private to kernels/cpu, included by isa_*.cpp only.

#include "kernels/cpu/e2m1.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/lanes.h"

namespace quantmill::cpu {
namespace {

// Gathers 4-bit codes with sign into 16 bytes. `codes` holds two codes in each 64-bit lane; lane k
// of vector v becomes byte (W/2) * v + k.
template <std::size_t W, std::size_t... I>
[[gnu::always_inline]] inline void pack_block(
    const typename Lanes<W>::Pairs (&codes)[kBlockVectors<W>],
    std::uint8_t* packed,
    std::index_sequence<I...> /*bytes*/) {
  using Pairs = typename Lanes<W>::Pairs;
  using PackedPairs = typename Lanes<W>::PackedPairs;
  Pairs gathered = {};
  for (std::size_t v = 0; v < kBlockVectors<W>; ++v) {
    gathered |= ((codes[v] | (codes[v] >> 28)) & 0xff) << (8 * v);
  }
  const PackedPairs narrow = __builtin_convertvector(gathered, PackedPairs);
  const Bytes16 bytes = (Bytes16)narrow;
  constexpr std::size_t kVectors = kBlockVectors<W>;
  constexpr std::size_t kPairs = W / 2;
  const Bytes16 ordered =
      __builtin_shufflevector(bytes, bytes, ((I % kPairs) * kVectors + I / kPairs)...);
  store(packed, ordered);
}

template <std::size_t W, bool IsSeed>
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
      signs[v] = (bits >> 28) & 8;
    }
    Ints amax;
    block_amax<W>(magnitudes, amax);
    Ints bytes;
    block_scale_bytes<W>(amax, task.carry, bytes);
    Float reciprocals;
    scale_reciprocals<W>(bytes, reciprocals);
    task.scales[block] = amax[0] == 0 ? kZeroBlockScale : static_cast<std::uint8_t>(bytes[0]);
    typename Lanes<W>::Pairs codes[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      RoundedE2m1<W> rounded;
      round_e2m1<W, IsSeed>(magnitudes[v] * reciprocals, rounded);
      codes[v] = (typename Lanes<W>::Pairs)(rounded.code | signs[v]);
    }
    pack_block<W>(codes, task.packed + block * 16, std::make_index_sequence<16>());
  }
}

template <std::size_t W>
[[gnu::always_inline]] inline void quantize_blocks_any(const QuantizeTask& task) {
  if (task.is_seed) {
    quantize_blocks<W, true>(task);
  } else {
    quantize_blocks<W, false>(task);
  }
}

// The magnitudes of codes 0 to 7: from code 2 on, the code's bits are a float's exponent and first
// mantissa bit; below, the same with the implied one taken away.
template <std::size_t W>
[[gnu::always_inline]] inline void decode_magnitudes(const typename Lanes<W>::Ints& codes,
                                                     typename Lanes<W>::Float& magnitudes) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  const Float normal = (Float)((codes << 22) + (126 << 23));
  const Float subnormal = (Float)((codes << 22) + (127 << 23)) - 1.0F;
  const Ints is_subnormal = codes < 2;
  magnitudes = (Float)(((Ints)subnormal & is_subnormal) | ((Ints)normal & ~is_subnormal));
}

// The values of W codes, two in a byte.
template <std::size_t W>
[[gnu::always_inline]] inline void decode_values(const std::uint8_t* packed,
                                                 typename Lanes<W>::Float& values) {
  using Ints = typename Lanes<W>::Ints;
  using Pairs = typename Lanes<W>::Pairs;
  typename Lanes<W>::PairBytes bytes;
  load(bytes, packed);
  const Pairs pairs = __builtin_convertvector(bytes, Pairs);
  const Ints codes = (Ints)((pairs & 0xf) | ((pairs << 28) & (std::uint64_t{0xf} << 32)));
  typename Lanes<W>::Float magnitudes;
  decode_magnitudes<W>(codes & 7, magnitudes);
  values = (typename Lanes<W>::Float)((Ints)magnitudes | ((codes & 8) << 28));
}

template <std::size_t W>
[[gnu::always_inline]] inline void dequantize_blocks(const DequantizeTask& task) {
  for (std::size_t block = 0; block < task.num_blocks; ++block) {
    const float scale = decode_e8m0(task.scales[block]);
    for (std::size_t v = 0; v < kBlockVectors<W>; ++v) {
      typename Lanes<W>::Float values;
      decode_values<W>(task.packed + block * 16 + v * (W / 2), values);
      store(task.values + block * kMxBlock + v * W, values * scale);
    }
  }
}

// Signs are left out: rounding, and so the error's magnitude, is the same for -x.
template <std::size_t W, bool IsSeed>
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
    block_scale_bytes<W>(amax, task.carry, bytes);
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
      RoundedE2m1<W> rounded;
      round_e2m1<W, IsSeed>(scaled[v] * reciprocals, rounded);
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

template <std::size_t W>
[[gnu::always_inline]] inline void add_segment_any(const CurveTask& task) {
  if (task.is_seed) {
    add_segment<W, true>(task);
  } else {
    add_segment<W, false>(task);
  }
}

}  // namespace
}  // namespace quantmill::cpu
