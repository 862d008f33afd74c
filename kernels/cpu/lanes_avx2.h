#pragma once

// Private to kernels/cpu, included by isa_avx2.cpp only: where the compiler misses the one
// instruction.

#include "kernels/cpu/lanes.h"

namespace quantmill::cpu {
namespace {

template <>
[[gnu::always_inline]] inline void widen_half<8>(const Lanes<8>::HalfFloat& from,
                                                 Lanes<8>::Double& to) {
  to = (Lanes<8>::Double)_mm256_cvtps_pd((__m128)from);
}

template <>
[[gnu::always_inline]] inline void limit_to<8>(Lanes<8>::Ints& values,
                                               const Lanes<8>::Ints& limit) {
  values = (Lanes<8>::Ints)_mm256_min_epi32((__m256i)values, (__m256i)limit);
}

}  // namespace
}  // namespace quantmill::cpu
