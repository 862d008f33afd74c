#pragma once

// Private to kernels/gpu: what the bodies of kernels share. A body is a plain struct of pointers
// and sizes whose operator() does the work of one thread, by its number. Bodies need no other
// thread: no shuffles, no shared memory, no barriers. So one source runs on the device, and on the
// CPU thread by thread (launch.h). Host and device compile it with -ffp-contract=off and
// -fmad=false: each operation rounds once.

#include <cstddef>
#include <cstdint>

#include "kernels/codec_float.h"

#ifdef __CUDACC__
#define QUANTMILL_BODY __host__ __device__ inline
#else
#define QUANTMILL_BODY inline
#endif

// Arrays whose places are known while compiling stay in a device's registers.
#ifdef __CUDA_ARCH__
#define QUANTMILL_UNROLL _Pragma("unroll")
#else
#define QUANTMILL_UNROLL
#endif

namespace quantmill::gpu {

// Number of a thread, and sizes of what one launch works on: launchers cut what is larger (64-bit
// division takes tens of instructions on a device).
using Index = std::uint32_t;

// What a thread reads at once; memory of matrices is aligned so.
struct alignas(16) Float4 {
  float values[4];
};

template <Index kCount>
QUANTMILL_BODY void load_floats(const float* from, float* values) {
  static_assert(kCount % 4 == 0);
  const auto* const quads = reinterpret_cast<const Float4*>(from);
  QUANTMILL_UNROLL
  for (Index i = 0; i < kCount / 4; ++i) {
    const Float4 quad = quads[i];
    QUANTMILL_UNROLL
    for (Index j = 0; j < 4; ++j) {
      values[4 * i + j] = quad.values[j];
    }
  }
}

template <Index kCount>
QUANTMILL_BODY void store_floats(const float* values, float* to) {
  static_assert(kCount % 4 == 0);
  auto* const quads = reinterpret_cast<Float4*>(to);
  QUANTMILL_UNROLL
  for (Index i = 0; i < kCount / 4; ++i) {
    Float4 quad;
    QUANTMILL_UNROLL
    for (Index j = 0; j < 4; ++j) {
      quad.values[j] = values[4 * i + j];
    }
    quads[i] = quad;
  }
}

// Where no element is what is looked for.
constexpr Index kNowhere = 0xffffffffU;

// The smallest of all that threads give; whatever their order, the same.
QUANTMILL_BODY void lower_to(Index* least, Index value) {
#ifdef __CUDA_ARCH__
  atomicMin(least, value);
#else
  *least = value < *least ? value : *least;
#endif
}

// The largest of all that threads give, none negative: their bits are ordered as they are.
QUANTMILL_BODY void raise_to(float* largest, float value) {
#ifdef __CUDA_ARCH__
  atomicMax(reinterpret_cast<unsigned*>(largest), float_bits(value));
#else
  *largest = value > *largest ? value : *largest;
#endif
}

QUANTMILL_BODY bool is_finite(float value) {
  return (float_bits(value) & 0x7f800000U) != 0x7f800000U;
}

QUANTMILL_BODY float magnitude(float value) {
  return float_from_bits(float_bits(value) & 0x7fffffffU);
}

// std::max for values that are no NaN.
QUANTMILL_BODY float larger(float a, float b) {
  return a < b ? b : a;
}

// The nearest integer, ties to even, of any float.
QUANTMILL_BODY float to_nearest(float value) {
  // Beyond 2^23 there are no fractions; below, the number whose last place is 1 rounds.
  constexpr float kMagic = 0x1p23F;
  const float size = magnitude(value);
  const float rounded = size < kMagic ? (size + kMagic) - kMagic : size;
  return float_from_bits(float_bits(rounded) | (float_bits(value) & 0x80000000U));
}

}  // namespace quantmill::gpu
