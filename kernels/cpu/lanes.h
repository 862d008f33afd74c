#pragma once

// Private to kernels/cpu: short vectors of W lanes (4, 8 or 16) in the compiler's own vector types,
// so that one body serves every instruction set. Included only by the bodies, behind the choice of
// an instruction set in isa_*.cpp; everything is in an unnamed namespace, since each of those files
// must have its own. Only integer comparisons pick minima and maxima, because under strict floating
// point only those become one instruction.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace quantmill::cpu {
namespace {

// Float, Bits (unsigned) and Ints (signed) have W lanes of 32 bits; Double has W/2 lanes, Pairs W/2
// lanes of 64 bits.
template <std::size_t W>
struct Lanes;

template <>
struct Lanes<4> {
  using Float [[gnu::vector_size(16)]] = float;
  using Bits [[gnu::vector_size(16)]] = std::uint32_t;
  using Ints [[gnu::vector_size(16)]] = std::int32_t;
  using Pairs [[gnu::vector_size(16)]] = std::uint64_t;
  using PairBytes [[gnu::vector_size(2)]] = std::uint8_t;
  using Double [[gnu::vector_size(16)]] = double;
  using HalfFloat [[gnu::vector_size(8)]] = float;
  using Shorts [[gnu::vector_size(8)]] = std::uint16_t;
  using Bytes [[gnu::vector_size(4)]] = std::uint8_t;
  using PackedPairs [[gnu::vector_size(16)]] = std::uint64_t;
};

template <>
struct Lanes<8> {
  using Float [[gnu::vector_size(32)]] = float;
  using Bits [[gnu::vector_size(32)]] = std::uint32_t;
  using Ints [[gnu::vector_size(32)]] = std::int32_t;
  using Pairs [[gnu::vector_size(32)]] = std::uint64_t;
  using PairBytes [[gnu::vector_size(4)]] = std::uint8_t;
  using Double [[gnu::vector_size(32)]] = double;
  using HalfFloat [[gnu::vector_size(16)]] = float;
  using Shorts [[gnu::vector_size(16)]] = std::uint16_t;
  using Bytes [[gnu::vector_size(8)]] = std::uint8_t;
  using PackedPairs [[gnu::vector_size(16)]] = std::uint32_t;
};

template <>
struct Lanes<16> {
  using Float [[gnu::vector_size(64)]] = float;
  using Bits [[gnu::vector_size(64)]] = std::uint32_t;
  using Ints [[gnu::vector_size(64)]] = std::int32_t;
  using Pairs [[gnu::vector_size(64)]] = std::uint64_t;
  using PairBytes [[gnu::vector_size(8)]] = std::uint8_t;
  using Double [[gnu::vector_size(64)]] = double;
  using HalfFloat [[gnu::vector_size(32)]] = float;
  using Shorts [[gnu::vector_size(32)]] = std::uint16_t;
  using Bytes [[gnu::vector_size(16)]] = std::uint8_t;
  using PackedPairs [[gnu::vector_size(16)]] = std::uint16_t;
};

using Bytes16 [[gnu::vector_size(16)]] = std::uint8_t;

template <typename Vector>
[[gnu::always_inline]] inline void load(Vector& vector, const void* from) {
  std::memcpy(&vector, from, sizeof(Vector));
}

template <typename Vector>
[[gnu::always_inline]] inline void store(void* to, const Vector& vector) {
  std::memcpy(to, &vector, sizeof(Vector));
}

// The first `count` lanes; the others stay as they are.
template <typename Vector, typename Element>
[[gnu::always_inline]] inline void load_some(Vector& vector,
                                             const Element* from,
                                             std::size_t count) {
  std::memcpy(&vector, from, count * sizeof(Element));
}

template <typename Vector, typename Element>
[[gnu::always_inline]] inline void store_some(Element* to,
                                              const Vector& vector,
                                              std::size_t count) {
  std::memcpy(to, &vector, count * sizeof(Element));
}

// W/2 floats as doubles.
template <std::size_t W>
[[gnu::always_inline]] inline void widen_half(const typename Lanes<W>::HalfFloat& from,
                                              typename Lanes<W>::Double& to) {
  to = __builtin_convertvector(from, typename Lanes<W>::Double);
}

// W/2 bytes as integers of 64 bits.
template <std::size_t W>
[[gnu::always_inline]] inline void widen_pair_bytes(const typename Lanes<W>::PairBytes& from,
                                                    typename Lanes<W>::Pairs& to) {
  to = __builtin_convertvector(from, typename Lanes<W>::Pairs);
}

// W bytes as integers of 32 bits, and W integers from 0 to 255 as bytes.
template <std::size_t W>
[[gnu::always_inline]] inline void widen_bytes(const typename Lanes<W>::Bytes& from,
                                               typename Lanes<W>::Ints& to) {
  to = __builtin_convertvector(from, typename Lanes<W>::Ints);
}

template <std::size_t W>
[[gnu::always_inline]] inline void narrow_to_bytes(const typename Lanes<W>::Ints& from,
                                                   typename Lanes<W>::Bytes& to) {
  to = __builtin_convertvector(from, typename Lanes<W>::Bytes);
}

// values = min(values, limit). A body with a constant limit would become a comparison and a blend.
template <std::size_t W>
[[gnu::always_inline]] inline void limit_to(typename Lanes<W>::Ints& values,
                                            const typename Lanes<W>::Ints& limit) {
  values = values < limit ? values : limit;
}

template <std::size_t W, std::size_t... I>
[[gnu::always_inline]] inline void widen_halves(const typename Lanes<W>::Float& from,
                                                typename Lanes<W>::Double& low,
                                                typename Lanes<W>::Double& high,
                                                std::index_sequence<I...> /*lanes of a half*/) {
  const typename Lanes<W>::HalfFloat low_half = __builtin_shufflevector(from, from, I...);
  const typename Lanes<W>::HalfFloat high_half =
      __builtin_shufflevector(from, from, (I + W / 2)...);
  widen_half<W>(low_half, low);
  widen_half<W>(high_half, high);
}

// The two halves of W floats as doubles.
template <std::size_t W>
[[gnu::always_inline]] inline void widen(const typename Lanes<W>::Float& from,
                                         typename Lanes<W>::Double& low,
                                         typename Lanes<W>::Double& high) {
  widen_halves<W>(from, low, high, std::make_index_sequence<W / 2>());
}

template <std::size_t W, std::size_t Distance, std::size_t... I>
[[gnu::always_inline]] inline void fold_max(typename Lanes<W>::Ints& values,
                                            std::index_sequence<I...> /*lanes*/) {
  const typename Lanes<W>::Ints other = __builtin_shufflevector(values, values, (I ^ Distance)...);
  values = values > other ? values : other;
}

// Every lane becomes the largest lane.
template <std::size_t W>
[[gnu::always_inline]] inline void spread_max(typename Lanes<W>::Ints& values) {
  constexpr auto kLanes = std::make_index_sequence<W>();
  if constexpr (W > 8) {
    fold_max<W, 8>(values, kLanes);
  }
  if constexpr (W > 4) {
    fold_max<W, 4>(values, kLanes);
  }
  fold_max<W, 2>(values, kLanes);
  fold_max<W, 1>(values, kLanes);
}

template <std::size_t W, std::size_t Distance, std::size_t... I>
[[gnu::always_inline]] inline void fold_sum(typename Lanes<W>::Float& values,
                                            std::index_sequence<I...> /*lanes*/) {
  const typename Lanes<W>::Float other = __builtin_shufflevector(values, values, (I ^ Distance)...);
  values += other;
}

// 16 lanes in 16 / W vectors: every lane of the first becomes what add_lanes (lane_sums.h) makes of
// them.
template <std::size_t W>
[[gnu::always_inline]] inline void spread_sum(typename Lanes<W>::Float (&values)[16 / W]) {
  constexpr auto kLanes = std::make_index_sequence<W>();
  if constexpr (W == 4) {
    values[0] += values[2];
    values[1] += values[3];
  }
  if constexpr (W < 16) {
    values[0] += values[1];
  } else {
    fold_sum<W, 8>(values[0], kLanes);
  }
  if constexpr (W > 4) {
    fold_sum<W, 4>(values[0], kLanes);
  }
  fold_sum<W, 2>(values[0], kLanes);
  fold_sum<W, 1>(values[0], kLanes);
}

}  // namespace
}  // namespace quantmill::cpu
