#pragma once

// Private to kernels/cpu, included by isa_*.cpp only: INT4 and INT8 groups.

#include "kernels/codec_float.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/lanes.h"

namespace quantmill::cpu {
namespace {

// Signed order as integers: floats whose sign is set have their other bits flipped.
[[gnu::always_inline]] inline std::int32_t ordered(std::int32_t bits) {
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

// The smallest and the largest of each group and 0.
[[gnu::always_inline]] inline void int_range_row(const IntRangeTask& task) {
  const float* __restrict values = task.values;
  for (std::size_t g = 0; g < task.num_groups; ++g) {
    std::int32_t low = 0;
    std::int32_t high = 0;
    for (std::size_t c = g * task.group; c < (g + 1) * task.group; ++c) {
      const std::int32_t key = ordered(static_cast<std::int32_t>(float_bits(values[c])));
      low = low < key ? low : key;
      high = high > key ? high : key;
    }
    task.low[g] = float_from_bits(static_cast<std::uint32_t>(ordered(low)));
    task.high[g] = float_from_bits(static_cast<std::uint32_t>(ordered(high)));
  }
}

// Adding it rounds to integers: its last place is 1.
constexpr float kIntMagic = 0x1.8p23F;

// Steps from the zero point to the code of each lane, as kIntMagic + steps.
template <std::size_t W>
[[gnu::always_inline]] inline void int_round_lanes(float scale,
                                                   const IntLimits& limits,
                                                   typename Lanes<W>::Float& lanes) {
  using Float = typename Lanes<W>::Float;
  const Float smallest = Float{} + static_cast<float>(limits.smallest - limits.zero_point);
  const Float largest = Float{} + static_cast<float>(limits.largest - limits.zero_point);
  lanes = lanes / scale;
  lanes = lanes > smallest ? lanes : smallest;
  lanes = lanes < largest ? lanes : largest;
  lanes += kIntMagic;
}

template <std::size_t W>
[[gnu::always_inline]] inline void int_encode_lanes(const float* values,
                                                    float scale,
                                                    const IntLimits& limits,
                                                    std::int8_t* codes,
                                                    std::size_t count) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  Float lanes = {};
  load_some(lanes, values, count);
  int_round_lanes<W>(scale, limits, lanes);
  const Ints rounded = (Ints)lanes - 0x4b400000 + limits.zero_point;
  typename Lanes<W>::Bytes bytes;
  narrow_to_bytes<W>(rounded & 0xff, bytes);
  store_some(codes, bytes, count);
}

template <std::size_t W>
[[gnu::always_inline]] inline void int_encode_row(const IntEncodeTask& task) {
  for (std::size_t g = 0; g < task.num_groups; ++g) {
    IntLimits limits = task.limits;
    limits.zero_point = task.zero_points == nullptr ? 0 : task.zero_points[g];
    const float scale = task.scales[g];
    const std::size_t end = (g + 1) * task.group;
    std::size_t c = g * task.group;
    for (; c + W <= end; c += W) {
      int_encode_lanes<W>(task.values + c, scale, limits, task.codes + c, W);
    }
    if (c < end) {
      int_encode_lanes<W>(task.values + c, scale, limits, task.codes + c, end - c);
    }
  }
}

// The error of int_search_scales. Lanes behind the group's end are zeros and add nothing.
template <std::size_t W>
[[gnu::always_inline]] inline float int_group_error(const IntErrorTask& task) {
  using Float = typename Lanes<W>::Float;
  Float sums[16 / W] = {};
  for (std::size_t c = 0; c < task.group; c += 16) {
    for (std::size_t v = 0; v < 16 / W && c + v * W < task.group; ++v) {
      const std::size_t begin = c + v * W;
      const std::size_t left = task.group - begin;
      Float values = {};
      Float importance = {};
      if (left >= W) {
        load(values, task.values + begin);
        load(importance, task.importance + begin);
      } else {
        load_some(values, task.values + begin, left);
        load_some(importance, task.importance + begin, left);
      }
      Float lanes = values;
      int_round_lanes<W>(task.scale, task.limits, lanes);
      const Float error = ((lanes - kIntMagic) * task.scale - values) * importance;
      sums[v] += error * error;
    }
  }
  spread_sum<W>(sums);
  return sums[0][0];
}

template <std::size_t W>
[[gnu::always_inline]] inline void int_decode_lanes(const std::int8_t* codes,
                                                    std::int32_t zero_point,
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
  const Ints steps = (wide ^ 0x80) - (0x80 + zero_point);  // sign extended, less the zero point
  const Float products = __builtin_convertvector(steps, Float) * scale;
  store_some(values, products, count);
  const Ints exponents = (Ints)products & 0x7f800000;
  largest = largest > exponents ? largest : exponents;
}

// Whether all are finite.
template <std::size_t W>
[[gnu::always_inline]] inline bool int_decode_row(const IntDecodeTask& task) {
  typename Lanes<W>::Ints largest = {};
  for (std::size_t g = 0; g < task.num_groups; ++g) {
    const std::int32_t zero_point = task.zero_points == nullptr ? 0 : task.zero_points[g];
    const float scale = task.scales[g];
    const std::size_t end = (g + 1) * task.group;
    std::size_t c = g * task.group;
    for (; c + W <= end; c += W) {
      int_decode_lanes<W>(task.codes + c, zero_point, scale, task.values + c, W, largest);
    }
    if (c < end) {
      int_decode_lanes<W>(task.codes + c, zero_point, scale, task.values + c, end - c, largest);
    }
  }
  spread_max<W>(largest);
  return largest[0] != 0x7f800000;
}

}  // namespace
}  // namespace quantmill::cpu
