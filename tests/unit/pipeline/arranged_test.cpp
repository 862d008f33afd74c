#include "pipeline/arranged.h"

#include <string>

#include <gmock/gmock.h>

namespace quantmill {
namespace {

using testing::ElementsAre;

// Elements of one byte, put where they belong in a tensor of `size` bytes; how many pieces it took.
std::pair<std::string, int> arranged(const ArrangedPart& part,
                                     const PartRange& range,
                                     const std::string& elements,
                                     std::size_t size) {
  std::string tensor(size, '.');
  int pieces = 0;
  std::vector<std::byte> scratch;
  emit_arranged(
      part,
      range,
      std::as_bytes(std::span(elements)),
      scratch,
      [&](std::size_t, std::uint64_t offset, std::span<const std::byte> bytes) {
        ++pieces;
        tensor.replace(
            offset, bytes.size(), reinterpret_cast<const char*>(bytes.data()), bytes.size());
      });
  return {tensor, pieces};
}

TEST(Arranged, WhatIsTurnedWholeIsOnePiece) {
  const ArrangedPart part{0, 0, DType::kU8, {{{2, 1}}, {{3, 2}}}};
  EXPECT_EQ(arranged(part, {0, 2, 0, 3}, "abcdef", 6), std::pair(std::string("adbecf"), 1));
  // The second row alone: one element of each row of the tensor.
  EXPECT_EQ(arranged(part, {1, 1, 0, 3}, "def", 6), std::pair(std::string(".d.e.f"), 3));
}

TEST(Arranged, PartsOfAStackKeepTheirPlaces) {
  // Two rows of a matrix [2, 3] that is columns 1 and 2 of four in slice 1 of [2, 3, 4].
  const ArrangedPart part{0, 12 + 1, DType::kU8, {{{2, 1}}, {{3, 4}}}};
  EXPECT_EQ(arranged(part, {0, 2, 0, 3}, "abcdef", 24).first, ".............ad..be..cf.");
}

TEST(Arranged, HeadsBecomeAnAxis) {
  // (heads dim) in -> heads in dim, for 2 heads of 2 and 3 inputs.
  const ArrangedPart part{0, 0, DType::kU8, {{{2, 6}, {2, 1}}, {{3, 2}}}};
  EXPECT_EQ(arranged(part, {0, 4, 0, 3}, "abcdefghijkl", 12).first, "adbecfgjhkil");
}

TEST(Arranged, RowsThatStayAreNotTurned) {
  const ArrangedPart part{0, 0, DType::kU8, {{{2, 4}}, {{3, 1}}}};
  EXPECT_EQ(arranged(part, {0, 2, 0, 3}, "abcdef", 8), std::pair(std::string("abc.def."), 2));
}

TEST(Arranged, ElementsOfSeveralBytesStayWhole) {
  const ArrangedPart part{0, 0, DType::kBf16, {{{2, 1}}, {{2, 2}}}};
  EXPECT_EQ(arranged(part, {0, 2, 0, 2}, "aAbBcCdD", 8).first, "aAcCbBdD");
}

}  // namespace
}  // namespace quantmill
