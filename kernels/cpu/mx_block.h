#pragma once

// Private to kernels/cpu: what a block of 32 elements has besides its elements: its scale, and the
// bytes that its codes are packed into.

#include "kernels/codec.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/lanes.h"
#include "kernels/mx.h"

namespace quantmill::cpu {
namespace {

// How many vectors hold a block.
template <std::size_t W>
constexpr std::size_t kBlockVectors = kMxBlock / W;

// The largest of a block's magnitudes (as bits, sign clear) in every lane.
template <std::size_t W>
[[gnu::always_inline]] inline void block_amax(
    const typename Lanes<W>::Float (&magnitudes)[kBlockVectors<W>], typename Lanes<W>::Ints& amax) {
  using Ints = typename Lanes<W>::Ints;
  amax = (Ints)magnitudes[0];
  for (std::size_t v = 1; v < kBlockVectors<W>; ++v) {
    const Ints other = (Ints)magnitudes[v];
    amax = amax > other ? amax : other;
  }
  spread_max<W>(amax);
}

// mx_scale_byte in every lane, but 0 for a block of zeros: any scale suits one, and the caller
// stores kZeroBlockScale.
template <std::size_t W, ElementFormat F>
[[gnu::always_inline]] inline void block_scale_bytes(const typename Lanes<W>::Ints& amax,
                                                     std::uint32_t carry,
                                                     typename Lanes<W>::Ints& bytes) {
  using Ints = typename Lanes<W>::Ints;
  using Bits = typename Lanes<W>::Bits;
  constexpr auto kLargestExponent = static_cast<std::int32_t>(element_layout(F).largest_exponent);
  bytes = (Ints)(((Bits)amax + carry) >> 23) - kLargestExponent;
  const Ints zero = {};
  bytes = bytes > zero ? bytes : zero;
}

// 2^(127 - byte). Bytes of finite blocks go from 0 to 253, so that it is a normal float.
template <std::size_t W>
[[gnu::always_inline]] inline void scale_reciprocals(const typename Lanes<W>::Ints& bytes,
                                                     typename Lanes<W>::Float& reciprocals) {
  reciprocals = (typename Lanes<W>::Float)((254 - bytes) << 23);
}

// 2^(byte - 127), the subnormal 2^-127 included.
template <std::size_t W>
[[gnu::always_inline]] inline void scale_values(const typename Lanes<W>::Ints& bytes,
                                                typename Lanes<W>::Float& scales) {
  using Ints = typename Lanes<W>::Ints;
  const Ints smallest = Ints{} + 0x00400000;
  const Ints normal = bytes << 23;
  scales = (typename Lanes<W>::Float)(normal > smallest ? normal : smallest);
}

// Gathers 4-bit codes with sign into 16 bytes. `codes` holds two codes in each 64-bit lane; lane k
// of vector v becomes byte (W/2) * v + k.
template <std::size_t W, std::size_t... I>
[[gnu::always_inline]] inline void pack_nibbles(
    const typename Lanes<W>::Ints (&codes)[kBlockVectors<W>],
    std::uint8_t* packed,
    std::index_sequence<I...> /*bytes*/) {
  using Pairs = typename Lanes<W>::Pairs;
  using PackedPairs = typename Lanes<W>::PackedPairs;
  Pairs gathered = {};
  for (std::size_t v = 0; v < kBlockVectors<W>; ++v) {
    const Pairs pairs = (Pairs)codes[v];
    gathered |= ((pairs | (pairs >> 28)) & 0xff) << (8 * v);
  }
  const PackedPairs narrow = __builtin_convertvector(gathered, PackedPairs);
  const Bytes16 bytes = (Bytes16)narrow;
  constexpr std::size_t kVectors = kBlockVectors<W>;
  constexpr std::size_t kPairs = W / 2;
  const Bytes16 ordered =
      __builtin_shufflevector(bytes, bytes, ((I % kPairs) * kVectors + I / kPairs)...);
  store(packed, ordered);
}

// The 32 6-bit codes of a block, one a byte, into 24 bytes and back, 8 at a time.
[[gnu::always_inline]] inline void pack_sextets(const std::uint8_t* codes, std::uint8_t* packed) {
  const auto gather = [](std::uint64_t four) {
    return (four & 0x3fU) | ((four >> 2) & 0xfc0U) | ((four >> 4) & 0x3f000U) |
           ((four >> 6) & 0xfc0000U);
  };
  for (std::size_t i = 0; i < kMxBlock / 8; ++i) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, codes + 8 * i, sizeof eight);
    const std::uint64_t six = gather(eight & 0xffffffffU) | (gather(eight >> 32) << 24);
    const auto low = static_cast<std::uint32_t>(six);
    const auto high = static_cast<std::uint16_t>(six >> 32);
    std::memcpy(packed + 6 * i, &low, sizeof low);
    std::memcpy(packed + 6 * i + 4, &high, sizeof high);
  }
}

[[gnu::always_inline]] inline void unpack_sextets(const std::uint8_t* packed, std::uint8_t* codes) {
  const auto spread = [](std::uint64_t three) {
    return (three & 0x3fU) | ((three << 2) & 0x3f00U) | ((three << 4) & 0x3f0000U) |
           ((three << 6) & 0x3f000000U);
  };
  for (std::size_t i = 0; i < kMxBlock / 8; ++i) {
    std::uint32_t low = 0;
    std::uint32_t high = 0;  // of the last four of six bytes
    std::memcpy(&low, packed + 6 * i, sizeof low);
    std::memcpy(&high, packed + 6 * i + 2, sizeof high);
    const std::uint64_t eight = spread(low) | (spread(high >> 8) << 32);
    std::memcpy(codes + 8 * i, &eight, sizeof eight);
  }
}

// Codes with sign into mx_packed_bytes of a block.
template <std::size_t W, ElementFormat F>
[[gnu::always_inline]] inline void pack_block(
    const typename Lanes<W>::Ints (&codes)[kBlockVectors<W>], std::uint8_t* packed) {
  if constexpr (element_bits(F) == 4) {
    pack_nibbles<W>(codes, packed, std::make_index_sequence<16>());
    return;
  }
  std::uint8_t bytes[kMxBlock];
  for (std::size_t v = 0; v < kBlockVectors<W>; ++v) {
    typename Lanes<W>::Bytes narrow;
    narrow_to_bytes<W>(codes[v], narrow);
    store((element_bits(F) == 8 ? packed : bytes) + v * W, narrow);
  }
  if constexpr (element_bits(F) == 6) {
    pack_sextets(bytes, packed);
  }
}

// The values of W codes from the v-th vector of a block on. `codes`: two in a byte if they have 4
// bits, otherwise one.
template <std::size_t W, ElementFormat F>
[[gnu::always_inline]] inline void decode_values(const std::uint8_t* codes,
                                                 std::size_t v,
                                                 typename Lanes<W>::Float& values) {
  using Ints = typename Lanes<W>::Ints;
  Ints wide;
  if constexpr (element_bits(F) == 4) {
    using Pairs = typename Lanes<W>::Pairs;
    typename Lanes<W>::PairBytes bytes;
    load(bytes, codes + v * (W / 2));
    Pairs pairs;
    widen_pair_bytes<W>(bytes, pairs);
    wide = (Ints)((pairs & 0xf) | ((pairs << 28) & (std::uint64_t{0xf} << 32)));
  } else {
    typename Lanes<W>::Bytes bytes;
    load(bytes, codes + v * W);
    widen_bytes<W>(bytes, wide);
  }
  Ints bits;
  decode_codes<W, F>(wide, bits);
  values = (typename Lanes<W>::Float)bits;
}

}  // namespace
}  // namespace quantmill::cpu
