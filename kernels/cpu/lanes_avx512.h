#pragma once

// Private to kernels/cpu, included by isa_avx512.cpp only: where the compiler misses the one
// instruction.

#include "kernels/cpu/element.h"
#include "kernels/cpu/lanes.h"

namespace quantmill::cpu {
namespace {

// With all lanes chosen these are the plain instructions; GCC 12 warns of its own header for the
// forms without a choice.
template <>
[[gnu::always_inline]] inline void widen_half<16>(const Lanes<16>::HalfFloat& from,
                                                  Lanes<16>::Double& to) {
  to = (Lanes<16>::Double)_mm512_maskz_cvtps_pd(0xff, (__m256)from);
}

template <>
[[gnu::always_inline]] inline void widen_pair_bytes<16>(const Lanes<16>::PairBytes& from,
                                                        Lanes<16>::Pairs& to) {
  to = (Lanes<16>::Pairs)_mm512_maskz_cvtepu8_epi64(0xff, _mm_cvtsi64_si128((long long)from));
}

template <>
[[gnu::always_inline]] inline void widen_bytes<16>(const Lanes<16>::Bytes& from,
                                                   Lanes<16>::Ints& to) {
  to = (Lanes<16>::Ints)_mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)from);
}

template <>
[[gnu::always_inline]] inline void narrow_to_bytes<16>(const Lanes<16>::Ints& from,
                                                       Lanes<16>::Bytes& to) {
  to = (Lanes<16>::Bytes)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)from);
}

template <>
[[gnu::always_inline]] inline void limit_to<16>(Lanes<16>::Ints& values,
                                                const Lanes<16>::Ints& limit) {
  values = (Lanes<16>::Ints)_mm512_maskz_min_epi32(0xffff, (__m512i)values, (__m512i)limit);
}

// All sixteen values fit into one register.
template <>
[[gnu::always_inline]] inline void decode_codes<16, ElementFormat::kE2m1>(
    const Lanes<16>::Ints& codes, Lanes<16>::Ints& bits) {
  const __m512 values =
      _mm512_setr_ps(0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6);
  bits = (Lanes<16>::Ints)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)codes, values);
}

}  // namespace
}  // namespace quantmill::cpu
