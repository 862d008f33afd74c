// Every instruction set of the cpu backend against the reference, to the byte: NVFP4.

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/nvfp4.h"
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
constexpr GlobalScale kGlobals[] = {{1, GlobalScaleUse::kMultiplies},
                                    {0x1.234p-13F, GlobalScaleUse::kMultiplies},
                                    {0x1p-149F, GlobalScaleUse::kMultiplies},
                                    {2688, GlobalScaleUse::kDivides},
                                    {0x1.357p13F, GlobalScaleUse::kDivides}};

class Nvfp4Backends : public testing::TestWithParam<Context> {
 protected:
  template <typename Body>
  void for_each_matrix(Body body) {
    std::mt19937 random(kSeed);
    for (const std::size_t rows : {0UL, 1UL, 3UL, 17UL}) {
      for (const std::size_t cols : {16UL, 32UL, 48UL, 1040UL}) {
        for (const GlobalScale global : kGlobals) {
          SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", global " << global.value
                                          << ", seed " << kSeed);
          body(rows, cols, global, random);
        }
      }
    }
  }

  Context backend_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Each,
                         Nvfp4Backends,
                         testing::ValuesIn(test::contexts_of_this_machine()),
                         [](const auto& test) { return test::name_of(test.param); });

// Any scale bytes, those that kernels write and those that they only read.
std::vector<std::uint8_t> random_scales(std::size_t count, unsigned largest, std::mt19937& random) {
  std::vector<std::uint8_t> scales(count);
  for (std::uint8_t& scale : scales) {
    scale = static_cast<std::uint8_t>(random() % (largest + 1));
  }
  return scales;
}

std::vector<std::uint8_t> quantize(const Context& context,
                                   ConstFloatMatrix values,
                                   const std::vector<std::uint8_t>& scales,
                                   GlobalScale global) {
  // One byte more in front, so that the output is unaligned.
  std::vector<std::uint8_t> packed(values.rows * values.cols / 2 + 1);
  nvfp4_quantize(context, values, scales, global, std::span(packed).subspan(1));
  return packed;
}

TEST_P(Nvfp4Backends, ScalesAndCodesAreTheSameBytes) {
  for_each_matrix([&](std::size_t rows, std::size_t cols, GlobalScale global, auto& random) {
    for (const Content content : kContents) {
      Matrix matrix(rows, cols);
      fill(matrix, content, random);
      std::vector<std::uint8_t> got(rows * cols / 16);
      std::vector<std::uint8_t> want(rows * cols / 16);
      nvfp4_block_scales(backend_, matrix.view(), global, got);
      nvfp4_block_scales(kReference, matrix.view(), global, want);
      ASSERT_EQ(got, want);
      ASSERT_EQ(quantize(backend_, matrix.view(), want, global),
                quantize(kReference, matrix.view(), want, global));
      const std::vector<std::uint8_t> any = random_scales(want.size(), 0x7e, random);
      ASSERT_EQ(quantize(backend_, matrix.view(), any, global),
                quantize(kReference, matrix.view(), any, global));
    }
  });
}

TEST_P(Nvfp4Backends, DequantizeGivesTheSameBits) {
  for_each_matrix([&](std::size_t rows, std::size_t cols, GlobalScale global, auto& random) {
    std::vector<std::uint8_t> scales = random_scales(rows * cols / 16, 0xfe, random);
    for (std::uint8_t& scale : scales) {
      scale = scale == 0x7f ? 0 : scale;
    }
    const std::vector<std::uint8_t> packed = random_scales(rows * cols / 2, 0xff, random);
    Matrix got(rows, cols);
    Matrix want(rows, cols);
    EXPECT_EQ(nvfp4_dequantize(backend_, packed, scales, global, got.view()), std::nullopt);
    EXPECT_EQ(nvfp4_dequantize(kReference, packed, scales, global, want.view()), std::nullopt);
    expect_same_floats(got.all(), want.all());
  });
}

TEST_P(Nvfp4Backends, FindsTheFirstThatIsNotFiniteAnywhere) {
  for (std::size_t place = 0; place < 3 * 3; ++place) {
    std::vector<std::uint8_t> scales(9, 0x38);
    const std::vector<std::uint8_t> packed(3 * 24, 0x11);
    Matrix out(3, 48);
    EXPECT_EQ(nvfp4_dequantize(backend_, packed, scales, {}, out.view()), std::nullopt);
    scales[place] = 0x7f;
    EXPECT_EQ(nvfp4_dequantize(backend_, packed, scales, {}, out.view()),
              (MatrixPosition{place / 3, place % 3 * 16}));
  }
}

}  // namespace
}  // namespace quantmill
