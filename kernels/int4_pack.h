#pragma once

// How files pack INT4 and INT8 codes into 32-bit words (safetensors dtype I32, little-endian, the
// first code in the lowest bits), to signed codes of one byte and back. What a code stands for is
// in kernels/int4.h.
//
// Who packs how, for a weight of N outputs and K inputs:
//   compressed-tensors weight_packed        [N, K/8]    pack_columns, kOffset
//                      weight_zero_point    [N/8, K/g]  pack_rows, kOffset
//   AutoAWQ            qweight, qzeros      [K, N/8], [K/g, N/8]  pack_columns, kAwq, kOffset
//   GPTQ               qweight              [K/8, N]    pack_rows, kOffset
//                      qzeros               [K/g, N/8]  pack_columns, kOffset; its first version
//                                                       stores the zero point less 1
//   Quark              weight per group     [K, N/8]    pack_columns, kAwq ("reorder")
//                      weight per channel   [N, K/8]    pack_columns, kSequential
//                      int4 is kTwosComplement there, uint4 kOffset

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/context.h"

namespace quantmill {

// Which of the 8 columns of a word the nibbles hold, from the lowest on.
enum class NibbleOrder {
  kSequential,  // 0, 1, 2, 3, 4, 5, 6, 7
  kAwq,         // 0, 2, 4, 6, 1, 3, 5, 7; 4 bits only
};

enum class IntCode {
  kOffset,          // code + 8 (INT8: + 128); also what counts from 0, seen as signed
  kTwosComplement,  // the code's lowest bits
};

struct IntPacking {
  std::size_t bits = 4;  // 4 or 8
  NibbleOrder order = NibbleOrder::kSequential;
  IntCode code = IntCode::kOffset;
};

// Words for `count` codes; the last may not be full, and its free bits are 0 and never read.
constexpr std::size_t int_packed_words(std::size_t bits, std::size_t count) {
  const std::size_t codes_per_word = 32 / bits;
  return count / codes_per_word + (count % codes_per_word != 0 ? 1 : 0);
}

// Along columns: each row is int_packed_words(bits, cols) words of its own.
//   codes: [rows, cols] within -8..7 (INT8: any). packed: rows x words x 4 bytes, any alignment.
void int_pack_columns(const Context& context,
                      const IntPacking& packing,
                      std::span<const std::int8_t> codes,
                      std::size_t rows,
                      std::size_t cols,
                      std::span<std::uint8_t> packed);
void int_unpack_columns(const Context& context,
                        const IntPacking& packing,
                        std::span<const std::uint8_t> packed,
                        std::size_t rows,
                        std::size_t cols,
                        std::span<std::int8_t> codes);

// Along rows: word [i][c] holds rows 8i to 8i + 7 (INT8: 4i to 4i + 3) of column c, kSequential
// only.
//   packed: int_packed_words(bits, rows) x cols x 4 bytes.
void int_pack_rows(const Context& context,
                   const IntPacking& packing,
                   std::span<const std::int8_t> codes,
                   std::size_t rows,
                   std::size_t cols,
                   std::span<std::uint8_t> packed);
void int_unpack_rows(const Context& context,
                     const IntPacking& packing,
                     std::span<const std::uint8_t> packed,
                     std::size_t rows,
                     std::size_t cols,
                     std::span<std::int8_t> codes);

// transposed[c][r] = codes[r][c]: between [K, N], as AWQ, GPTQ and Quark store, and [N, K]. codes
// is [rows, cols]. The same loop, in tiles, on every backend.
void transpose_codes(std::span<const std::int8_t> codes,
                     std::size_t rows,
                     std::size_t cols,
                     std::span<std::int8_t> transposed);

}  // namespace quantmill
