#pragma once

// Private to kernels/cpu, included by isa_*.cpp only: whole words of INT4 codes. Everything is done
// within one word at a time with shifts and masks, so that the compiler makes vectors of the loops.

#include "kernels/cpu/entries.h"

namespace quantmill::cpu {
namespace {

// The low nibbles of 8 bytes side by side, and back.
[[gnu::always_inline]] inline std::uint32_t gather_nibbles(std::uint64_t bytes) {
  bytes = (bytes | (bytes >> 4)) & 0x00ff00ff00ff00ffU;
  bytes = (bytes | (bytes >> 8)) & 0x0000ffff0000ffffU;
  return static_cast<std::uint32_t>(bytes | (bytes >> 16));
}

[[gnu::always_inline]] inline std::uint64_t spread_nibbles(std::uint32_t word) {
  std::uint64_t bytes = word;
  bytes = (bytes | (bytes << 16)) & 0x0000ffff0000ffffU;
  bytes = (bytes | (bytes << 8)) & 0x00ff00ff00ff00ffU;
  return (bytes | (bytes << 4)) & 0x0f0f0f0f0f0f0f0fU;
}

// The even nibbles of a word in its low half, the odd ones in its high half, and back.
[[gnu::always_inline]] inline std::uint32_t split_nibbles(std::uint32_t word) {
  const auto half = [](std::uint32_t nibbles) {
    nibbles = (nibbles | (nibbles >> 4)) & 0x00ff00ffU;
    return (nibbles | (nibbles >> 8)) & 0xffffU;
  };
  return half(word & 0x0f0f0f0fU) | (half((word >> 4) & 0x0f0f0f0fU) << 16);
}

[[gnu::always_inline]] inline std::uint32_t merge_nibbles(std::uint32_t word) {
  const auto spread = [](std::uint32_t half) {
    half = (half | (half << 8)) & 0x00ff00ffU;
    return (half | (half << 4)) & 0x0f0f0f0fU;
  };
  return spread(word & 0xffffU) | (spread(word >> 16) << 4);
}

// Nibbles in two's complement, one in each byte, to bytes.
[[gnu::always_inline]] inline std::uint64_t extend_signs(std::uint64_t nibbles) {
  std::uint64_t high = (nibbles & 0x0808080808080808U) << 1;
  high |= high << 1;
  high |= high << 2;
  return nibbles | high;
}

template <bool IsAwq>
[[gnu::always_inline]] inline void pack_words(const NibblePackTask& task) {
  const std::int8_t* __restrict codes = task.codes;
  std::uint8_t* __restrict packed = task.packed;
  const std::uint32_t flip = task.is_offset ? 0x88888888U : 0U;  // code + 8 is the sign flipped
  for (std::size_t w = 0; w < task.num_words; ++w) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, codes + 8 * w, sizeof bytes);
    const std::uint32_t nibbles = gather_nibbles(bytes & 0x0f0f0f0f0f0f0f0fU) ^ flip;
    const std::uint32_t word = IsAwq ? split_nibbles(nibbles) : nibbles;
    std::memcpy(packed + 4 * w, &word, sizeof word);
  }
}

[[gnu::always_inline]] inline void pack_words_any(const NibblePackTask& task) {
  if (task.is_awq) {
    pack_words<true>(task);
  } else {
    pack_words<false>(task);
  }
}

template <bool IsAwq>
[[gnu::always_inline]] inline void unpack_words(const NibbleUnpackTask& task) {
  const std::uint8_t* __restrict packed = task.packed;
  std::int8_t* __restrict codes = task.codes;
  const std::uint32_t flip = task.is_offset ? 0x88888888U : 0U;
  for (std::size_t w = 0; w < task.num_words; ++w) {
    std::uint32_t word = 0;
    std::memcpy(&word, packed + 4 * w, sizeof word);
    const std::uint32_t nibbles = (IsAwq ? merge_nibbles(word) : word) ^ flip;
    const std::uint64_t bytes = extend_signs(spread_nibbles(nibbles));
    std::memcpy(codes + 8 * w, &bytes, sizeof bytes);
  }
}

[[gnu::always_inline]] inline void unpack_words_any(const NibbleUnpackTask& task) {
  if (task.is_awq) {
    unpack_words<true>(task);
  } else {
    unpack_words<false>(task);
  }
}

// One row of words; codes are rows of `cols` bytes, one below the other.
[[gnu::always_inline]] inline void pack_word_row(const NibbleRowPackTask& task) {
  const std::int8_t* __restrict codes = task.codes;
  std::uint8_t* __restrict packed = task.packed;
  const std::uint32_t flip = task.is_offset ? 0x88888888U : 0U;
  for (std::size_t c = 0; c < task.cols; ++c) {
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      word |= (static_cast<std::uint32_t>(codes[i * task.cols + c]) & 0xfU) << (4 * i);
    }
    word ^= flip;
    std::memcpy(packed + 4 * c, &word, sizeof word);
  }
}

[[gnu::always_inline]] inline void unpack_word_row(const NibbleRowUnpackTask& task) {
  const std::uint8_t* __restrict packed = task.packed;
  std::int8_t* __restrict codes = task.codes;
  const std::uint32_t flip = task.is_offset ? 0x88888888U : 0U;
  for (std::size_t i = 0; i < 8; ++i) {
    for (std::size_t c = 0; c < task.cols; ++c) {
      std::uint32_t word = 0;
      std::memcpy(&word, packed + 4 * c, sizeof word);
      const auto high = static_cast<std::int32_t>((word ^ flip) << (28 - 4 * i));
      codes[i * task.cols + c] = static_cast<std::int8_t>(high >> 28);
    }
  }
}

}  // namespace
}  // namespace quantmill::cpu
