#pragma once

// Private to kernels/gpu: MX blocks (mx.h).

#include "kernels/codec.h"
#include "kernels/gpu/body.h"
#include "kernels/lane_sums.h"
#include "kernels/mx.h"

namespace quantmill::gpu {

constexpr Index kBlock = kMxBlock;

// Words that hold a block's codes: as many as a code has bits.
constexpr Index num_words(ElementFormat element) {
  return static_cast<Index>(element_bits(element));
}

struct alignas(8) Words2 {
  std::uint32_t words[2];
};

struct alignas(16) Words4 {
  std::uint32_t words[4];
};

template <Index kCount>
QUANTMILL_BODY void store_words(const std::uint32_t* words, std::uint8_t* to) {
  if constexpr (kCount % 4 == 0) {
    QUANTMILL_UNROLL
    for (Index i = 0; i < kCount / 4; ++i) {
      reinterpret_cast<Words4*>(to)[i] = {
          {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]}};
    }
  } else {
    static_assert(kCount % 2 == 0);
    QUANTMILL_UNROLL
    for (Index i = 0; i < kCount / 2; ++i) {
      reinterpret_cast<Words2*>(to)[i] = {{words[2 * i], words[2 * i + 1]}};
    }
  }
}

QUANTMILL_BODY std::uint32_t amax_bits_of(const float* values) {
  std::uint32_t bits = 0;
  QUANTMILL_UNROLL
  for (Index i = 0; i < kBlock; ++i) {
    const std::uint32_t here = float_bits(values[i]) & 0x7fffffffU;
    bits = bits < here ? here : bits;
  }
  return bits;
}

// decode_element(encode_element(value, ties)), without the code: a sum with 2^23 steps rounds to a
// step, ties to even.
template <ElementFormat kElement>
QUANTMILL_BODY float nearest_element(float value, TieRule ties) {
  constexpr ElementLayout kLayout = element_layout(kElement);
  constexpr std::uint32_t kLeast = 127 + 1 - static_cast<std::uint32_t>(kLayout.bias);
  constexpr std::uint32_t kMost = 127 + kLayout.largest_exponent;
  const float size = magnitude(value);
  const float largest = decode_element(kElement, static_cast<std::uint8_t>(kLayout.largest_code));
  const std::uint32_t field = float_bits(size) >> 23;
  // What lies above saturates, whatever its step.
  const std::uint32_t binade = field < kLeast ? kLeast : kMost < field ? kMost : field;
  const std::uint32_t step_field = binade - kLayout.mantissa_bits;
  const float steps = float_from_bits((step_field + 23) << 23);
  float nearest = (size + steps) - steps;
  if (ties == TieRule::kSeed && size < largest) {
    const float step = float_from_bits(step_field << 23);
    nearest = nearest - size == step / 2 ? nearest - 2 * step : nearest;
  }
  // NaN stays NaN in formats of 8 bits and is the largest value of others.
  constexpr bool kHasNan = element_bits(kElement) == 8;
  const bool is_within = kHasNan ? !(largest < nearest) : nearest < largest;
  return float_from_bits(float_bits(is_within ? nearest : largest) |
                         (float_bits(value) & 0x80000000U));
}

// p_j of mx.h, added up.
template <ElementFormat kElement>
QUANTMILL_BODY float block_error(const float* values,
                                 const float* importance,  // or null: 1
                                 std::uint8_t scale) {
  const float reciprocal = decode_e8m0_reciprocal(scale);
  const float factor = decode_e8m0(scale);
  std::array<float, kSumLanes> lanes{};
  QUANTMILL_UNROLL
  for (Index i = 0; i < kBlock; ++i) {
    const float got = nearest_element<kElement>(values[i] * reciprocal, TieRule::kEven) * factor;
    const float error = (got - values[i]) * (importance == nullptr ? 1.0F : importance[i]);
    lanes[i % kSumLanes] += error * error;
  }
  return add_lanes(lanes);
}

// kMxTriedExponents after the first, limited as mx.h says.
QUANTMILL_BODY std::uint8_t tried_scale(std::uint8_t first, int turn) {
  const int scale = first + (turn == 0 ? 1 : -1);
  return static_cast<std::uint8_t>(scale < 0 ? 0 : scale);
}

template <ElementFormat kElement>
QUANTMILL_BODY void pack_block(const float* values,
                               std::uint8_t scale,
                               TieRule ties,
                               std::uint8_t* packed) {
  constexpr Index kBits = num_words(kElement);
  const float reciprocal = decode_e8m0_reciprocal(scale);
  std::uint32_t words[kBits] = {};
  QUANTMILL_UNROLL
  for (Index i = 0; i < kBlock; ++i) {
    const std::uint32_t code = encode_element(kElement, values[i] * reciprocal, ties);
    const Index place = i * kBits;
    words[place / 32] |= code << (place % 32);
    if (place % 32 + kBits > 32) {
      words[place / 32 + 1] |= code >> (32 - place % 32);
    }
  }
  store_words<kBits>(words, packed);
}

template <ElementFormat kElement>
struct MxQuantizeBody {  // a block each
  const float* values;
  std::uint8_t* packed;
  std::uint8_t* scales;
  const float* importance;  // of ScaleRule::kMse, [row_blocks * kBlock], or null: 1
  Index row_blocks;
  ScaleRule rule;
  TieRule ties;

  QUANTMILL_BODY void operator()(Index block) const {
    float x[kBlock];
    load_floats<kBlock>(values + block * kBlock, x);
    const std::uint32_t amax_bits = amax_bits_of(x);
    std::uint8_t scale = mx_scale_byte(rule, kElement, amax_bits);
    if (rule == ScaleRule::kMse && amax_bits != 0) {
      const float* const weights =
          importance == nullptr ? nullptr : importance + block % row_blocks * kBlock;
      const std::uint8_t first = scale;
      float least = block_error<kElement>(x, weights, first);
      for (int turn = 0; turn < 2; ++turn) {
        const std::uint8_t tried = tried_scale(first, turn);
        const float error = block_error<kElement>(x, weights, tried);
        if (error < least) {
          least = error;
          scale = tried;
        }
      }
    }
    scales[block] = scale;
    pack_block<kElement>(x, scale, ties, packed + block * num_words(kElement) * 4);
  }
};

template <ElementFormat kElement>
struct MxEncodeBody {  // a block each
  const float* values;
  const std::uint8_t* scales;
  std::uint8_t* packed;

  QUANTMILL_BODY void operator()(Index block) const {
    float x[kBlock];
    load_floats<kBlock>(values + block * kBlock, x);
    pack_block<kElement>(
        x, scales[block], TieRule::kEven, packed + block * num_words(kElement) * 4);
  }
};

template <ElementFormat kElement>
struct MxDequantizeBody {  // a block each
  const std::uint8_t* packed;
  const std::uint8_t* scales;
  float* values;

  QUANTMILL_BODY void operator()(Index block) const {
    constexpr Index kBits = num_words(kElement);
    const auto* const stored = reinterpret_cast<const std::uint32_t*>(packed + block * kBits * 4);
    std::uint32_t words[kBits];
    QUANTMILL_UNROLL
    for (Index i = 0; i < kBits; ++i) {
      words[i] = stored[i];
    }
    const float scale = decode_e8m0(scales[block]);
    float x[kBlock];
    QUANTMILL_UNROLL
    for (Index i = 0; i < kBlock; ++i) {
      const Index place = i * kBits;
      std::uint32_t code = words[place / 32] >> (place % 32);
      if (place % 32 + kBits > 32) {
        code |= words[place / 32 + 1] << (32 - place % 32);
      }
      x[i] =
          decode_element(kElement, static_cast<std::uint8_t>(code & ((1U << kBits) - 1U))) * scale;
    }
    store_floats<kBlock>(x, values + block * kBlock);
  }
};

struct CurveWeightsBody {  // a column of a candidate each
  const float* importance;
  const float* candidates;
  Index cols;
  float* weights;  // [candidates, cols]

  QUANTMILL_BODY void operator()(Index i) const {
    weights[i] = importance[i % cols] * (1.0F / candidates[i]);
  }
};

// Of mx_error_curve: in units of the scale's square.
template <ElementFormat kElement>
QUANTMILL_BODY float error_in_steps(const float* values,
                                    const float* weights,
                                    std::uint8_t scale,
                                    TieRule ties) {
  const float reciprocal = decode_e8m0_reciprocal(scale);
  float parts[4] = {};
  QUANTMILL_UNROLL
  for (Index i = 0; i < kBlock; i += 4) {
    float w[4];
    load_floats<4>(weights + i, w);
    QUANTMILL_UNROLL
    for (Index j = 0; j < 4; ++j) {
      const float x = values[i + j] * reciprocal;
      const float step = nearest_element<kElement>(x, ties) - x;
      const float error = step * w[j];
      parts[j] += error * error;
    }
  }
  return (parts[0] + parts[2]) + (parts[1] + parts[3]);
}

// A block's row meets every candidate, so that values are read once. What other rows give is added
// afterwards (SumCurveBody): in one order, whatever the number of threads.
template <ElementFormat kElement>
struct MxCurveBody {          // a block of columns in a row each; neighbours are rows of one block
  const float* values;        // [rows, cols]
  const float* candidates;    // [num_candidates, cols]
  const float* weights;       // [num_candidates, cols]
  const double* row_weights;  // or null: 1
  Index rows;
  Index cols;
  Index num_candidates;
  ScaleRule rule;
  TieRule ties;
  double* errors;  // [blocks, num_candidates, rows]

  QUANTMILL_BODY void operator()(Index thread) const {
    const Index block = thread / rows;
    const Index row = thread % rows;
    const Index column = block * kBlock;
    float v[kBlock];
    load_floats<kBlock>(values + row * cols + column, v);
    const double row_weight = row_weights == nullptr ? 1 : row_weights[row];
    for (Index candidate = 0; candidate < num_candidates; ++candidate) {
      float x[kBlock];
      load_floats<kBlock>(candidates + candidate * cols + column, x);
      QUANTMILL_UNROLL
      for (Index i = 0; i < kBlock; ++i) {
        x[i] = v[i] * x[i];
      }
      errors[(block * num_candidates + candidate) * rows + row] =
          error_of(x, weights + candidate * cols + column) * row_weight;
    }
  }

  QUANTMILL_BODY double error_of(const float* x, const float* w) const {
    const std::uint32_t amax_bits = amax_bits_of(x);
    const std::uint8_t first = mx_scale_byte(rule, kElement, amax_bits);
    std::uint8_t best = first;
    float error = error_in_steps<kElement>(x, w, first, ties);
    if (rule == ScaleRule::kMse && amax_bits != 0) {
      float least = error;
      for (int turn = 0; turn < 2; ++turn) {
        const std::uint8_t scale = tried_scale(first, turn);
        const float tried = error_in_steps<kElement>(x, w, scale, ties);
        // In steps of the first: 4^(scale - first), exact.
        const float steps = scale > first ? 4.0F : scale < first ? 0.25F : 1.0F;
        const float in_first_steps = tried * steps;
        if (in_first_steps < least) {
          least = in_first_steps;
          best = scale;
          error = tried;
        }
      }
    }
    const double scale = decode_e8m0(best);
    return error * scale * scale;
  }
};

struct SumCurveBody {    // a candidate of a block each
  const double* errors;  // [threads, rows]
  Index rows;
  double* sums;

  QUANTMILL_BODY void operator()(Index thread) const {
    double sum = sums[thread];
    for (Index first = 0; first < rows; first += kMxCurveRows) {
      SumLanes lanes{};
      const Index here = rows - first < kMxCurveRows ? rows - first : Index{kMxCurveRows};
      for (Index r = 0; r < here; ++r) {
        lanes[r] = errors[thread * rows + first + r];
      }
      sum += add_lanes(lanes);
    }
    sums[thread] = sum;
  }
};

}  // namespace quantmill::gpu
