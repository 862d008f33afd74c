// Packing of integer codes against literal words, and back.

#include "kernels/int4_pack.h"

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/kernels/random_matrix.h"

namespace quantmill {
namespace {

using testing::ElementsAre;

constexpr Context kReference{Backend::kReference, Isa::kPlain};
constexpr IntPacking kOffset4{4, NibbleOrder::kSequential, IntCode::kOffset};
constexpr IntPacking kAwq4{4, NibbleOrder::kAwq, IntCode::kOffset};
constexpr IntPacking kTwos4{4, NibbleOrder::kSequential, IntCode::kTwosComplement};
constexpr IntPacking kOffset8{8, NibbleOrder::kSequential, IntCode::kOffset};

std::vector<std::uint8_t> pack(const Context& context,
                               const IntPacking& packing,
                               const std::vector<std::int8_t>& codes,
                               std::size_t rows,
                               bool is_along_rows = false) {
  const std::size_t cols = codes.size() / rows;
  std::vector<std::uint8_t> packed(4 * (is_along_rows
                                            ? int_packed_words(packing.bits, rows) * cols
                                            : int_packed_words(packing.bits, cols) * rows));
  (is_along_rows ? int_pack_rows : int_pack_columns)(context, packing, codes, rows, cols, packed);
  return packed;
}

std::vector<std::int8_t> unpack(const Context& context,
                                const IntPacking& packing,
                                const std::vector<std::uint8_t>& packed,
                                std::size_t rows,
                                std::size_t cols,
                                bool is_along_rows = false) {
  std::vector<std::int8_t> codes(rows * cols);
  (is_along_rows ? int_unpack_rows : int_unpack_columns)(
      context, packing, packed, rows, cols, codes);
  return codes;
}

TEST(IntPackColumns, OffsetPutsTheFirstCodeInTheLowNibble) {
  EXPECT_THAT(pack(kReference, kOffset4, {-8, -7, -6, -5, 4, 5, 6, 7}, 1),
              ElementsAre(0x10, 0x32, 0xdc, 0xfe));
}

TEST(IntPackColumns, TwosComplementKeepsTheLowBits) {
  EXPECT_THAT(pack(kReference, kTwos4, {-8, -1, 0, 1, 2, 7, -2, 3}, 1),
              ElementsAre(0xf8, 0x10, 0x72, 0x3e));
}

// AutoAWQ packs column 8j + order[i] into nibble i, order 0, 2, 4, 6, 1, 3, 5, 7.
TEST(IntPackColumns, AwqPutsEvenColumnsInTheLowHalf) {
  EXPECT_THAT(pack(kReference, kAwq4, {-8, -7, -6, -5, -4, -3, -2, -1}, 1),
              ElementsAre(0x20, 0x64, 0x31, 0x75));
}

TEST(IntPackColumns, EightBitsAreBytes) {
  EXPECT_THAT(pack(kReference, kOffset8, {-128, 0, 127, 1}, 1), ElementsAre(0, 0x80, 0xff, 0x81));
}

TEST(IntPackColumns, EveryRowHasItsOwnWordsAndFreeBitsAreZero) {
  EXPECT_THAT(pack(kReference, kOffset4, {1, 2, 3, -1, -2, -3}, 2),
              ElementsAre(0xa9, 0x0b, 0, 0, 0x67, 0x05, 0, 0));
  EXPECT_THAT(pack(kReference, kOffset8, {1, 2}, 2), ElementsAre(0x81, 0, 0, 0, 0x82, 0, 0, 0));
}

// GPTQ: word [i][c] holds rows 8i to 8i + 7 of column c.
TEST(IntPackRows, PutsRowsIntoOneWord) {
  std::vector<std::int8_t> codes(16);
  for (std::size_t r = 0; r < 8; ++r) {
    codes[2 * r] = static_cast<std::int8_t>(static_cast<int>(r) - 8);
    codes[2 * r + 1] = static_cast<std::int8_t>(r);
  }
  EXPECT_THAT(pack(kReference, kOffset4, codes, 8, true),
              ElementsAre(0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe));
  EXPECT_THAT(pack(kReference, kOffset8, {-128, 1, 2, 127}, 4, true),
              ElementsAre(0, 0x81, 0x82, 0xff));
}

TEST(IntPackRows, FreeBitsAreZero) {
  EXPECT_THAT(pack(kReference, kOffset4, {1, 2, 3}, 3, true), ElementsAre(0xa9, 0x0b, 0, 0));
}

TEST(IntPack, WrongShapesAreOurFault) {
  std::vector<std::uint8_t> packed(4);
  const std::vector<std::int8_t> codes(8);
  EXPECT_NO_THROW(int_pack_columns(kReference, kOffset4, codes, 1, 8, packed));
  EXPECT_THROW(int_pack_columns(kReference, kOffset4, codes, 2, 4, packed), Error);
  EXPECT_THROW(int_pack_columns(kReference, kOffset4, codes, 1, 7, packed), Error);
  EXPECT_THROW(int_pack_columns(kReference, kOffset8, codes, 1, 8, packed), Error);
  EXPECT_THROW(int_pack_rows(kReference, kAwq4, codes, 8, 1, packed), Error);
  std::vector<std::uint8_t> two(8);
  EXPECT_THROW(
      int_pack_columns(kReference, {8, NibbleOrder::kAwq, IntCode::kOffset}, codes, 1, 8, two),
      Error);
}

TEST(TransposeCodes, SwapsRowsAndColumns) {
  std::vector<std::int8_t> codes(std::size_t{70} * 130);
  std::mt19937 random(test::kSeed);
  for (std::int8_t& code : codes) {
    code = static_cast<std::int8_t>(random());
  }
  std::vector<std::int8_t> transposed(codes.size());
  transpose_codes(codes, 70, 130, transposed);
  for (std::size_t r = 0; r < 70; ++r) {
    for (std::size_t c = 0; c < 130; ++c) {
      ASSERT_EQ(transposed[c * 70 + r], codes[r * 130 + c]);
    }
  }
  EXPECT_THROW(transpose_codes(codes, 70, 129, transposed), Error);
}

class IntPackBackends : public testing::TestWithParam<Context> {};

INSTANTIATE_TEST_SUITE_P(Each,
                         IntPackBackends,
                         testing::ValuesIn(test::contexts_of_this_machine()),
                         [](const auto& test) { return test::name_of(test.param); });

// Every word of the reference, and every code back, for any packing and shape.
TEST_P(IntPackBackends, GiveTheSameBytesAndTheCodesBack) {
  const Context backend = GetParam();
  std::mt19937 random(test::kSeed);
  for (const std::size_t bits : {4UL, 8UL}) {
    for (const IntCode code : {IntCode::kOffset, IntCode::kTwosComplement}) {
      for (const bool is_along_rows : {false, true}) {
        for (const NibbleOrder order : {NibbleOrder::kSequential, NibbleOrder::kAwq}) {
          if (order == NibbleOrder::kAwq && (bits == 8 || is_along_rows)) {
            continue;
          }
          const IntPacking packing{bits, order, code};
          for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{1, 8},
                                           {8, 1},
                                           {3, 13},
                                           {16, 40},
                                           {9, 136},
                                           {24, 33}}) {
            std::vector<std::int8_t> codes(rows * cols);
            for (std::int8_t& value : codes) {
              const int field = static_cast<int>(random() % (1U << bits));
              value = static_cast<std::int8_t>(field - (1 << (bits - 1)));
            }
            const auto want = pack(kReference, packing, codes, rows, is_along_rows);
            ASSERT_EQ(pack(backend, packing, codes, rows, is_along_rows), want)
                << rows << " " << cols;
            ASSERT_EQ(unpack(backend, packing, want, rows, cols, is_along_rows), codes);
            ASSERT_EQ(unpack(kReference, packing, want, rows, cols, is_along_rows), codes);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace quantmill
