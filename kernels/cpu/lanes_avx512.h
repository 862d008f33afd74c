#pragma once

// Private to kernels/cpu, included by isa_avx512.cpp only: where the compiler misses the one
// instruction.

#include "kernels/cpu/lanes.h"

namespace quantmill::cpu {
namespace {

template <>
[[gnu::always_inline]] inline void limit_to<16>(Lanes<16>::Ints& values,
                                                const Lanes<16>::Ints& limit) {
  // With all lanes chosen it is the plain instruction; GCC 12 warns of its own header for
  // _mm512_min_epi32.
  values = (Lanes<16>::Ints)_mm512_maskz_min_epi32(0xffff, (__m512i)values, (__m512i)limit);
}

}  // namespace
}  // namespace quantmill::cpu
