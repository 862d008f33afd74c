// Every instruction set of the cpu backend against the reference, to the byte: INT4 and INT8.

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/int4.h"
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

struct Shape {
  std::size_t rows;
  std::size_t cols;
  std::size_t group;
};

constexpr Shape kShapes[] = {
    {0, 32, 32}, {1, 32, 32}, {3, 192, 64}, {5, 256, 128}, {2, 300, 300}, {4, 90, 6}, {2, 7, 7}};

struct Quantized {
  Matrix scales;
  std::vector<std::int8_t> zero_points;
  std::vector<std::int8_t> codes;
};

Quantized quantize(const Context& context, const IntSpec& spec, ConstFloatMatrix values) {
  const std::size_t groups = values.cols / spec.group;
  Quantized result{Matrix(values.rows, groups),
                   std::vector<std::int8_t>(spec.is_symmetric ? 0 : values.rows * groups),
                   std::vector<std::int8_t>(values.rows * values.cols)};
  int_scales(context, spec, values, 0.875F, result.scales.view(), result.zero_points);
  int_quantize(context, spec, values, result.scales.view(), result.zero_points, result.codes);
  return result;
}

class IntBackends : public testing::TestWithParam<Context> {
 protected:
  template <typename Body>
  void for_each_spec(Body body) {
    std::mt19937 random(kSeed);
    for (const Shape& shape : kShapes) {
      for (const std::size_t bits : {4UL, 8UL}) {
        for (const bool is_symmetric : {true, false}) {
          SCOPED_TRACE(testing::Message()
                       << shape.rows << " x " << shape.cols << ", group " << shape.group << ", "
                       << bits << " bits, symmetric " << is_symmetric << ", seed " << kSeed);
          const DType type = bits == 4 ? DType::kBf16 : DType::kF32;
          body(shape,
               IntSpec{bits, shape.group, is_symmetric, IntScaleRule::kHalfRange, type},
               random);
        }
      }
    }
  }

  Context backend_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Each,
                         IntBackends,
                         testing::ValuesIn(test::contexts_of_this_machine()),
                         [](const auto& test) { return test::name_of(test.param); });

TEST_P(IntBackends, ScalesAndCodesAreTheSameBytes) {
  for_each_spec([&](const Shape& shape, const IntSpec& spec, std::mt19937& random) {
    for (const Content content : kContents) {
      Matrix matrix(shape.rows, shape.cols);
      fill(matrix, content, random);
      Quantized got = quantize(backend_, spec, matrix.view());
      Quantized want = quantize(kReference, spec, matrix.view());
      expect_same_floats(got.scales.all(), want.scales.all());
      ASSERT_EQ(got.zero_points, want.zero_points);
      ASSERT_EQ(got.codes, want.codes);
    }
  });
}

TEST_P(IntBackends, TiesOfAnyZeroPointRoundAlike) {
  Matrix matrix(1, 4096);
  for (std::size_t i = 0; i < 4096; ++i) {
    matrix.all()[i] = (static_cast<float>(i) - 2048) / 8;  // -256 to 256 in steps of 1/8
  }
  const float scale = 1;
  for (const std::size_t bits : {4UL, 8UL}) {
    const IntSpec spec{bits, 4096, false, IntScaleRule::kHalfRange, DType::kF32};
    for (int zero = int_smallest(bits); zero <= int_largest(bits); ++zero) {
      const std::vector<std::int8_t> zero_points{static_cast<std::int8_t>(zero)};
      std::vector<std::int8_t> got(4096);
      std::vector<std::int8_t> want(4096);
      int_quantize(backend_, spec, matrix.view(), {&scale, 1, 1}, zero_points, got);
      int_quantize(kReference, spec, matrix.view(), {&scale, 1, 1}, zero_points, want);
      ASSERT_EQ(got, want) << zero;
    }
  }
}

TEST_P(IntBackends, DequantizeGivesTheSameBits) {
  for_each_spec([&](const Shape& shape, const IntSpec& spec, std::mt19937& random) {
    const std::size_t groups = shape.rows * (shape.cols / shape.group);
    Matrix scales(shape.rows, shape.cols / shape.group);
    fill(scales, Content::kAnyFinite, random);
    for (float& scale : scales.all()) {
      scale *= 0x1p-8F;  // products stay finite
    }
    std::vector<std::int8_t> codes(shape.rows * shape.cols);
    std::vector<std::int8_t> zero_points(spec.is_symmetric ? 0 : groups);
    for (auto* bytes : {&codes, &zero_points}) {
      for (std::int8_t& byte : *bytes) {
        byte = static_cast<std::int8_t>(random());
      }
    }
    Matrix got(shape.rows, shape.cols);
    Matrix want(shape.rows, shape.cols);
    const auto run = [&](const Context& context, Matrix& values) {
      return int_dequantize(context, codes, scales.view(), zero_points, {}, values.view());
    };
    EXPECT_EQ(run(backend_, got), std::nullopt);
    EXPECT_EQ(run(kReference, want), std::nullopt);
    expect_same_floats(got.all(), want.all());
  });
}

TEST_P(IntBackends, FindsTheFirstThatIsNotFiniteAnywhere) {
  for (std::size_t place = 0; place < 3 * 74; ++place) {
    std::vector<std::int8_t> codes(3 * 74);
    const std::vector<float> scales(6, 0x1p127F);
    Matrix out(3, 74);
    EXPECT_EQ(int_dequantize(backend_, codes, {scales.data(), 3, 2}, {}, {}, out.view()),
              std::nullopt);
    codes[place] = 2;
    EXPECT_EQ(int_dequantize(backend_, codes, {scales.data(), 3, 2}, {}, {}, out.view()),
              (MatrixPosition{place / 74, place % 74}));
  }
}

}  // namespace
}  // namespace quantmill
