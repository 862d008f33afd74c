#pragma once

// Private to kernels/cpu, included by isa_*.cpp only.

#include "kernels/codec_float.h"
#include "kernels/cpu/entries.h"
#include "kernels/cpu/lanes.h"
#include "kernels/lane_sums.h"

namespace quantmill::cpu {
namespace {

constexpr std::int32_t kExponentMask = 0x7f800000;

template <std::size_t W, bool IsBf16>
[[gnu::always_inline]] inline void decode_lanes(const typename Lanes<W>::Bits& stored,
                                                typename Lanes<W>::Ints& bits) {
  using Float = typename Lanes<W>::Float;
  using Ints = typename Lanes<W>::Ints;
  if constexpr (IsBf16) {
    bits = (Ints)(stored << 16);
  } else {
    const Ints magnitude = (Ints)((stored & 0x7fff) << 13);
    const Ints exponent = magnitude & (31 << 23);
    // Exponent 31 (infinity, NaN) becomes 255; exponent 0 has no implied one, which the subtraction
    // takes away.
    const Ints rebased = magnitude + (112 << 23) + ((exponent == (31 << 23)) & (112 << 23));
    const Ints subnormal = (Ints)((Float)(magnitude + (113 << 23)) - 0x1p-14F);
    bits = (exponent == 0 ? subnormal : rebased) | (Ints)((stored & 0x8000) << 16);
  }
}

// Whether all are finite.
template <std::size_t W, bool IsBf16>
[[gnu::always_inline]] inline bool decode_all(const DecodeTask& task) {
  using Bits = typename Lanes<W>::Bits;
  using Ints = typename Lanes<W>::Ints;
  Ints largest = {};
  std::size_t i = 0;
  for (; i + W <= task.count; i += W) {
    typename Lanes<W>::Shorts stored;
    load(stored, task.stored + 2 * i);
    Ints bits;
    decode_lanes<W, IsBf16>(__builtin_convertvector(stored, Bits), bits);
    store(task.values + i, bits);
    const Ints exponents = bits & kExponentMask;
    largest = largest > exponents ? largest : exponents;
  }
  spread_max<W>(largest);
  bool is_finite = largest[0] != kExponentMask;
  for (; i < task.count; ++i) {
    std::uint16_t stored = 0;
    std::memcpy(&stored, task.stored + 2 * i, sizeof stored);
    task.values[i] = IsBf16 ? bf16_to_float(stored) : f16_to_float(stored);
    is_finite = is_finite && (float_bits(task.values[i]) & kExponentMask) != kExponentMask;
  }
  return is_finite;
}

template <std::size_t W>
[[gnu::always_inline]] inline bool decode_any(const DecodeTask& task) {
  return task.is_bf16 ? decode_all<W, true>(task) : decode_all<W, false>(task);
}

// Encodes to BF16; whether all results are finite.
template <std::size_t W>
[[gnu::always_inline]] inline bool encode_all(const EncodeTask& task) {
  using Bits = typename Lanes<W>::Bits;
  using Ints = typename Lanes<W>::Ints;
  Ints largest = {};
  std::size_t i = 0;
  for (; i + W <= task.count; i += W) {
    Bits bits;
    load(bits, task.values + i);
    const Bits rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const Bits quiet = (bits >> 16) | 0x40U;
    const Ints is_nan = (Ints)(bits & 0x7fffffffU) > kExponentMask;
    const Bits stored = (quiet & (Bits)is_nan) | (rounded & ~(Bits)is_nan);
    store(task.stored + 2 * i, __builtin_convertvector(stored, typename Lanes<W>::Shorts));
    const Ints exponents = (Ints)(stored & 0x7f80U);
    largest = largest > exponents ? largest : exponents;
  }
  spread_max<W>(largest);
  bool is_finite = largest[0] != 0x7f80;
  for (; i < task.count; ++i) {
    const std::uint16_t stored = float_to_bf16(task.values[i]);
    std::memcpy(task.stored + 2 * i, &stored, sizeof stored);
    is_finite = is_finite && (stored & 0x7f80) != 0x7f80;
  }
  return is_finite;
}

[[gnu::always_inline]] inline void scale_rows(const ScaleTask& task) {
  for (std::size_t r = 0; r < task.rows; ++r) {
    float* __restrict row = task.values + r * task.cols;
    if (task.column_factors != nullptr) {
      for (std::size_t c = 0; c < task.cols; ++c) {
        row[c] *= task.column_factors[c];
      }
    }
    if (task.row_factors != nullptr) {
      const float factor = task.row_factors[r];
      for (std::size_t c = 0; c < task.cols; ++c) {
        row[c] *= factor;
      }
    }
    if (task.column_divisors != nullptr) {
      for (std::size_t c = 0; c < task.cols; ++c) {
        row[c] /= task.column_divisors[c];
      }
    }
    if (task.row_divisors != nullptr) {
      const float divisor = task.row_divisors[r];
      for (std::size_t c = 0; c < task.cols; ++c) {
        row[c] /= divisor;
      }
    }
  }
}

// Adds a row's squared errors and squares.
template <std::size_t W, bool IsWeighted>
[[gnu::always_inline]] inline void add_weighted_row(const CompareTask& row) {
  using Float = typename Lanes<W>::Float;
  using Double = typename Lanes<W>::Double;
  constexpr std::size_t kVectors = kSumLanes / W;
  Double error_sums[2 * kVectors] = {};
  Double norm_sums[2 * kVectors] = {};
  std::size_t c = 0;
  for (; c + kSumLanes <= row.cols; c += kSumLanes) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      Float got;
      Float want;
      load(got, row.got + c + v * W);
      load(want, row.want + c + v * W);
      Float error = got - want;
      if constexpr (IsWeighted) {
        Float weights;
        load(weights, row.weights + c + v * W);
        error *= weights;
        want *= weights;
      }
      Double low;
      Double high;
      widen<W>(error, low, high);
      error_sums[2 * v] += low * low;
      error_sums[2 * v + 1] += high * high;
      widen<W>(want, low, high);
      norm_sums[2 * v] += low * low;
      norm_sums[2 * v + 1] += high * high;
    }
  }
  std::memcpy(row.errors->data(), error_sums, sizeof error_sums);
  std::memcpy(row.norms->data(), norm_sums, sizeof norm_sums);
  for (; c < row.cols; ++c) {
    const float weight = IsWeighted ? row.weights[c] : 1.0F;
    const double error = (row.got[c] - row.want[c]) * weight;
    const double value = row.want[c] * weight;
    (*row.errors)[c % kSumLanes] += error * error;
    (*row.norms)[c % kSumLanes] += value * value;
  }
}

template <std::size_t W>
[[gnu::always_inline]] inline void add_row(const CompareTask& row) {
  if (row.weights == nullptr) {
    return add_weighted_row<W, false>(row);
  }
  add_weighted_row<W, true>(row);
}

}  // namespace
}  // namespace quantmill::cpu
