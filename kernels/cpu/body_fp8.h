#pragma once

// Private to kernels/cpu, included by isa_*.cpp only.

#include "kernels/codec.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/lanes.h"

namespace quantmill::cpu {
namespace {

// Where the block that begins at column `begin` ends.
[[gnu::always_inline]] inline std::size_t block_end(std::size_t begin,
                                                    std::size_t block_cols,
                                                    std::size_t cols) {
  return block_cols < cols - begin ? begin + block_cols : cols;
}

// Up to W codes: more than `count` are neither read nor written.
template <std::size_t W>
[[gnu::always_inline]] inline void fp8_decode_lanes(const std::uint8_t* codes,
                                                    float scale,
                                                    float* values,
                                                    std::size_t count,
                                                    typename Lanes<W>::Ints& largest) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  typename Lanes<W>::Bytes bytes = {};
  load_some(bytes, codes, count);
  Ints wide;
  widen_bytes<W>(bytes, wide);
  Ints bits;
  decode_codes<W, ElementFormat::kE4m3>(wide, bits);
  const Float products = (Float)bits * scale;
  store_some(values, products, count);
  const Ints exponents = (Ints)products & 0x7f800000;
  largest = largest > exponents ? largest : exponents;
}

// Whether all are finite.
template <std::size_t W>
[[gnu::always_inline]] inline bool fp8_decode_row(const Fp8DecodeTask& task) {
  typename Lanes<W>::Ints largest = {};
  std::size_t block = 0;
  for (std::size_t begin = 0; begin < task.cols; begin += task.block_cols) {
    const std::size_t end = block_end(begin, task.block_cols, task.cols);
    const float scale = task.scales[block++];
    std::size_t c = begin;
    for (; c + W <= end; c += W) {
      fp8_decode_lanes<W>(task.codes + c, scale, task.values + c, W, largest);
    }
    if (c < end) {
      fp8_decode_lanes<W>(task.codes + c, scale, task.values + c, end - c, largest);
    }
  }
  spread_max<W>(largest);
  return largest[0] != 0x7f800000;
}

template <std::size_t W>
[[gnu::always_inline]] inline void fp8_encode_lanes(const float* values,
                                                    float scale,
                                                    std::uint8_t* codes,
                                                    std::size_t count) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  Float lanes = {};
  load_some(lanes, values, count);
  const Ints quotients = (Ints)(lanes / scale);
  Rounded<W> rounded;
  round_element<W, ElementFormat::kE4m3, false>((Float)(quotients & 0x7fffffff), rounded);
  Ints signs;
  place_signs<W, ElementFormat::kE4m3>(quotients, signs);
  typename Lanes<W>::Bytes bytes;
  narrow_to_bytes<W>(rounded.code | signs, bytes);
  store_some(codes, bytes, count);
}

template <std::size_t W>
[[gnu::always_inline]] inline void fp8_encode_row(const Fp8EncodeTask& task) {
  std::size_t block = 0;
  for (std::size_t begin = 0; begin < task.cols; begin += task.block_cols) {
    const std::size_t end = block_end(begin, task.block_cols, task.cols);
    const float scale = task.scales[block++];
    std::size_t c = begin;
    for (; c + W <= end; c += W) {
      fp8_encode_lanes<W>(task.values + c, scale, task.codes + c, W);
    }
    if (c < end) {
      fp8_encode_lanes<W>(task.values + c, scale, task.codes + c, end - c);
    }
  }
}

[[gnu::always_inline]] inline void amax_row(const AmaxTask& task) {
  const float* __restrict values = task.values;
  std::size_t block = 0;
  for (std::size_t begin = 0; begin < task.cols; begin += task.block_cols) {
    const std::size_t end = block_end(begin, task.block_cols, task.cols);
    std::uint32_t largest = float_bits(task.amax[block]);
    for (std::size_t c = begin; c < end; ++c) {
      const std::uint32_t magnitude = float_bits(values[c]) & 0x7fffffffU;
      largest = largest > magnitude ? largest : magnitude;
    }
    task.amax[block++] = float_from_bits(largest);
  }
}

}  // namespace
}  // namespace quantmill::cpu
