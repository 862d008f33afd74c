// Every instruction set of the cpu backend against the reference, to the byte: FP8 and block
// maxima.

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/block_grid.h"
#include "kernels/codec.h"
#include "kernels/fp8.h"
#include "tests/kernels/random_matrix.h"

namespace quantmill {
namespace {

using test::Content;
using test::expect_same_floats;
using test::fill;
using test::kContents;
using test::kSeed;
using test::Matrix;

constexpr Context kReference{Backend::kReference, Isa::kPlain};
constexpr std::size_t kRows[] = {0, 1, 5, 130};
constexpr std::size_t kCols[] = {1, 15, 127, 128, 129, 300};
constexpr BlockGrid kGrids[] = {{.rows = 128, .cols = 128},
                                {.rows = 128, .cols = 128, .first_row = 100},
                                {.rows = 1, .cols = 1000},
                                {.rows = std::numeric_limits<std::size_t>::max(), .cols = 1000},
                                {.rows = 3, .cols = 17, .first_row = 2}};

class Fp8Backends : public testing::TestWithParam<Context> {
 protected:
  template <typename Body>
  void for_each_matrix(Body body) {
    std::mt19937 random(kSeed);
    for (const std::size_t rows : kRows) {
      for (const std::size_t cols : kCols) {
        for (const BlockGrid& grid : kGrids) {
          SCOPED_TRACE(testing::Message() << rows << " x " << cols << " in blocks of " << grid.rows
                                          << " x " << grid.cols << ", seed " << kSeed);
          body(rows, cols, grid, random);
        }
      }
    }
  }

  Context backend_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Each,
                         Fp8Backends,
                         testing::ValuesIn(test::contexts_of_this_machine()),
                         [](const auto& test) { return test::name_of(test.param); });

Matrix grid_matrix(std::size_t rows, std::size_t cols, const BlockGrid& grid) {
  return {num_block_rows(grid, rows), num_block_cols(grid, cols)};
}

Matrix random_scales(std::size_t rows,
                     std::size_t cols,
                     const BlockGrid& grid,
                     std::mt19937& random) {
  Matrix scales = grid_matrix(rows, cols, grid);
  for (float& scale : scales.all()) {
    scale = std::exp(std::normal_distribution<float>(-4, 2)(random));
  }
  return scales;
}

TEST_P(Fp8Backends, BlockAmaxGivesTheSameBits) {
  for_each_matrix([&](std::size_t rows, std::size_t cols, const BlockGrid& grid, auto& random) {
    for (const Content content : kContents) {
      Matrix matrix(rows, cols);
      fill(matrix, content, random);
      Matrix got = grid_matrix(rows, cols, grid);
      Matrix want = grid_matrix(rows, cols, grid);
      block_amax(backend_, matrix.view(), grid, got.view());
      block_amax(kReference, matrix.view(), grid, want.view());
      expect_same_floats(got.all(), want.all());
    }
  });
}

TEST_P(Fp8Backends, QuantizeGivesTheSameBytes) {
  for_each_matrix([&](std::size_t rows, std::size_t cols, const BlockGrid& grid, auto& random) {
    for (const Content content : kContents) {
      Matrix matrix(rows, cols);
      fill(matrix, content, random);
      Matrix scales = random_scales(rows, cols, grid, random);
      std::vector<std::uint8_t> got(rows * cols);
      std::vector<std::uint8_t> want(rows * cols);
      fp8_quantize(backend_, matrix.view(), scales.view(), grid, got);
      fp8_quantize(kReference, matrix.view(), scales.view(), grid, want);
      ASSERT_EQ(got, want);
    }
  });
}

TEST_P(Fp8Backends, EveryBf16QuantizesAlike) {
  Matrix matrix(256, 256);
  for (std::uint32_t i = 0; i < 0x10000; ++i) {  // NaN aside: what is not finite becomes 0
    const float value = bf16_to_float(static_cast<std::uint16_t>(i));
    matrix.all()[i] = (i & 0x7f80U) == 0x7f80U ? 0 : value;
  }
  const float scale = 1;
  const BlockGrid grid{.rows = 256, .cols = 256};
  std::vector<std::uint8_t> got(0x10000);
  std::vector<std::uint8_t> want(0x10000);
  fp8_quantize(backend_, matrix.view(), {&scale, 1, 1}, grid, got);
  fp8_quantize(kReference, matrix.view(), {&scale, 1, 1}, grid, want);
  EXPECT_EQ(got, want);
}

TEST_P(Fp8Backends, DequantizeGivesTheSameBits) {
  for_each_matrix([&](std::size_t rows, std::size_t cols, const BlockGrid& grid, auto& random) {
    Matrix scales = random_scales(rows, cols, grid, random);
    std::vector<std::uint8_t> codes(rows * cols);
    for (std::uint8_t& code : codes) {
      code = static_cast<std::uint8_t>(random());
      code = (code & 0x7fU) == 0x7fU ? 0x7eU : code;
    }
    Matrix got(rows, cols);
    Matrix want(rows, cols);
    EXPECT_EQ(fp8_dequantize(backend_, codes, scales.view(), grid, got.view()), std::nullopt);
    EXPECT_EQ(fp8_dequantize(kReference, codes, scales.view(), grid, want.view()), std::nullopt);
    expect_same_floats(got.all(), want.all());
  });
}

TEST_P(Fp8Backends, EveryCodeDecodesAlikeAndNanIsFound) {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::uint8_t>(i);
  }
  const float scale = 0x1.234p-3F;
  const BlockGrid grid{.rows = 1, .cols = 256};
  Matrix got(1, 256);
  Matrix want(1, 256);
  EXPECT_EQ(fp8_dequantize(backend_, codes, {&scale, 1, 1}, grid, got.view()),
            (MatrixPosition{0, 127}));
  EXPECT_EQ(fp8_dequantize(kReference, codes, {&scale, 1, 1}, grid, want.view()),
            (MatrixPosition{0, 127}));
  expect_same_floats(got.all(), want.all());
}

TEST_P(Fp8Backends, FindsTheFirstThatIsNotFiniteAnywhere) {
  const std::vector<float> scales{1, 2, 0x1p120F};
  const BlockGrid grid{.rows = 128, .cols = 16};
  for (std::size_t place = 0; place < 3 * 37; ++place) {
    std::vector<std::uint8_t> codes(3 * 37);
    Matrix out(3, 37);
    EXPECT_EQ(fp8_dequantize(backend_, codes, {scales.data(), 1, 3}, grid, out.view()),
              std::nullopt);
    codes[place] = place % 37 < 32 ? 0xff : 0x7e;  // 448 * 2^120 is beyond the largest float
    EXPECT_EQ(fp8_dequantize(backend_, codes, {scales.data(), 1, 3}, grid, out.view()),
              (MatrixPosition{place / 37, place % 37}));
  }
}

// Pieces of any number of rows give what the whole matrix gives.
TEST_P(Fp8Backends, CutByRowsIsTheWhole) {
  std::mt19937 random(kSeed);
  Matrix matrix(200, 70);
  fill(matrix, Content::kOrdinary, random);
  BlockGrid grid{.rows = 64, .cols = 32};
  Matrix scales = random_scales(200, 70, grid, random);
  std::vector<std::uint8_t> whole(200 * 70);
  fp8_quantize(backend_, matrix.view(), scales.view(), grid, whole);
  Matrix whole_amax = grid_matrix(200, 70, grid);
  block_amax(backend_, matrix.view(), grid, whole_amax.view());
  std::vector<std::uint8_t> parts(200 * 70);
  Matrix amax = grid_matrix(200, 70, grid);
  Matrix values(200, 70);
  Matrix whole_values(200, 70);
  for (; grid.first_row < 200; grid.first_row += 40) {
    const std::size_t begin = grid.first_row * 70;
    const ConstFloatMatrix part(matrix.view().data + begin, 40, 70);
    const std::span<std::uint8_t> codes = std::span(parts).subspan(begin, std::size_t{40} * 70);
    fp8_quantize(backend_, part, scales.view(), grid, codes);
    block_amax(backend_, part, grid, amax.view());
    fp8_dequantize(backend_, codes, scales.view(), grid, {values.view().data + begin, 40, 70});
  }
  grid.first_row = 0;
  fp8_dequantize(backend_, whole, scales.view(), grid, whole_values.view());
  EXPECT_EQ(parts, whole);
  expect_same_floats(amax.all(), whole_amax.all());
  expect_same_floats(values.all(), whole_values.all());
}

}  // namespace
}  // namespace quantmill
