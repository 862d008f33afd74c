#include "kernels/int4_pack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/backends.h"

namespace quantmill::reference {
namespace {

constexpr std::array<std::size_t, 8> kAwqColumns{0, 2, 4, 6, 1, 3, 5, 7};

unsigned field_mask(const IntPacking& packing) {
  return (1U << packing.bits) - 1U;
}

// What is stored for a code, and back.
unsigned to_field(const IntPacking& packing, std::int8_t code) {
  const unsigned offset = packing.code == IntCode::kOffset ? 1U << (packing.bits - 1) : 0U;
  return (static_cast<unsigned>(code) + offset) & field_mask(packing);
}

std::int8_t from_field(const IntPacking& packing, unsigned field) {
  const int half = 1 << (packing.bits - 1);
  const int value = static_cast<int>(field);
  if (packing.code == IntCode::kOffset) {
    return static_cast<std::int8_t>(value - half);
  }
  return static_cast<std::int8_t>(value < half ? value : value - 2 * half);
}

std::size_t column_of(const IntPacking& packing, std::size_t nibble) {
  return packing.order == NibbleOrder::kAwq ? kAwqColumns[nibble] : nibble;
}

std::uint32_t load_word(const std::uint8_t* from) {
  std::uint32_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

}  // namespace

void int_pack_columns(const IntPacking& packing,
                      std::span<const std::int8_t> codes,
                      std::size_t rows,
                      std::size_t cols,
                      std::span<std::uint8_t> packed) {
  const std::size_t num_fields = 32 / packing.bits;
  const std::size_t num_words = int_packed_words(packing.bits, cols);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t w = 0; w < num_words; ++w) {
      std::uint32_t word = 0;
      for (std::size_t i = 0; i < num_fields; ++i) {
        const std::size_t c = w * num_fields + column_of(packing, i);
        word |= c < cols ? to_field(packing, codes[r * cols + c]) << (i * packing.bits) : 0U;
      }
      std::memcpy(packed.data() + (r * num_words + w) * 4, &word, sizeof word);
    }
  }
}

void int_unpack_columns(const IntPacking& packing,
                        std::span<const std::uint8_t> packed,
                        std::size_t rows,
                        std::size_t cols,
                        std::span<std::int8_t> codes) {
  const std::size_t num_fields = 32 / packing.bits;
  const std::size_t num_words = int_packed_words(packing.bits, cols);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t w = 0; w < num_words; ++w) {
      const std::uint32_t word = load_word(packed.data() + (r * num_words + w) * 4);
      for (std::size_t i = 0; i < num_fields; ++i) {
        const std::size_t c = w * num_fields + column_of(packing, i);
        if (c < cols) {
          codes[r * cols + c] =
              from_field(packing, (word >> (i * packing.bits)) & field_mask(packing));
        }
      }
    }
  }
}

void int_pack_rows(const IntPacking& packing,
                   std::span<const std::int8_t> codes,
                   std::size_t rows,
                   std::size_t cols,
                   std::span<std::uint8_t> packed) {
  const std::size_t num_fields = 32 / packing.bits;
  for (std::size_t first = 0; first < rows; first += num_fields) {
    for (std::size_t c = 0; c < cols; ++c) {
      std::uint32_t word = 0;
      for (std::size_t i = 0; i < std::min(num_fields, rows - first); ++i) {
        word |= to_field(packing, codes[(first + i) * cols + c]) << (i * packing.bits);
      }
      std::memcpy(packed.data() + (first / num_fields * cols + c) * 4, &word, sizeof word);
    }
  }
}

void int_unpack_rows(const IntPacking& packing,
                     std::span<const std::uint8_t> packed,
                     std::size_t rows,
                     std::size_t cols,
                     std::span<std::int8_t> codes) {
  const std::size_t num_fields = 32 / packing.bits;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < cols; ++c) {
      const std::uint32_t word = load_word(packed.data() + (r / num_fields * cols + c) * 4);
      const std::size_t shift = r % num_fields * packing.bits;
      codes[r * cols + c] = from_field(packing, (word >> shift) & field_mask(packing));
    }
  }
}

}  // namespace quantmill::reference
