#pragma once

// Private to kernels/cpu, included by isa_avx2.cpp only: where the compiler misses the one
// instruction.

#include "kernels/cpu/element.h"
#include "kernels/cpu/lanes.h"

namespace quantmill::cpu {
namespace {

template <>
[[gnu::always_inline]] inline void widen_half<8>(const Lanes<8>::HalfFloat& from,
                                                 Lanes<8>::Double& to) {
  to = (Lanes<8>::Double)_mm256_cvtps_pd((__m128)from);
}

template <>
[[gnu::always_inline]] inline void widen_pair_bytes<8>(const Lanes<8>::PairBytes& from,
                                                       Lanes<8>::Pairs& to) {
  to = (Lanes<8>::Pairs)_mm256_cvtepu8_epi64(_mm_cvtsi32_si128((int)from));
}

template <>
[[gnu::always_inline]] inline void widen_bytes<8>(const Lanes<8>::Bytes& from, Lanes<8>::Ints& to) {
  to = (Lanes<8>::Ints)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)from));
}

template <>
[[gnu::always_inline]] inline void narrow_to_bytes<8>(const Lanes<8>::Ints& from,
                                                      Lanes<8>::Bytes& to) {
  const __m128i low = _mm256_castsi256_si128((__m256i)from);
  const __m128i high = _mm256_extracti128_si256((__m256i)from, 1);
  const __m128i shorts = _mm_packus_epi32(low, high);
  to = (Lanes<8>::Bytes)_mm_cvtsi128_si64(_mm_packus_epi16(shorts, shorts));
}

template <>
[[gnu::always_inline]] inline void limit_to<8>(Lanes<8>::Ints& values,
                                               const Lanes<8>::Ints& limit) {
  values = (Lanes<8>::Ints)_mm256_min_epi32((__m256i)values, (__m256i)limit);
}

// All eight magnitudes fit into one register.
template <>
[[gnu::always_inline]] inline void decode_codes<8, ElementFormat::kE2m1>(
    const Lanes<8>::Ints& codes, Lanes<8>::Ints& bits) {
  const __m256 values = _mm256_setr_ps(0, 0.5F, 1, 1.5F, 2, 3, 4, 6);
  bits = (Lanes<8>::Ints)_mm256_permutevar8x32_ps(values, (__m256i)codes);
  bits |= (codes & 8) << 28;
}

}  // namespace
}  // namespace quantmill::cpu
