// Every instruction set of the cpu backend against the reference, to the byte.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codec.h"
#include "kernels/compare.h"
#include "kernels/convert.h"
#include "kernels/mx.h"
#include "kernels/scale.h"
#include "tests/kernels/random_matrix.h"

namespace quantmill {
namespace {

using test::bits_of;
using test::Content;
using test::expect_same_floats;
using test::fill;
using test::kContents;
using test::kSeed;
using test::Matrix;

constexpr Context kReference{Backend::kReference, Isa::kPlain};
constexpr ElementFormat kOtherElements[] = {
    ElementFormat::kE2m3, ElementFormat::kE3m2, ElementFormat::kE4m3, ElementFormat::kE5m2};
constexpr std::size_t kRows[] = {0, 1, 3, 17};
constexpr std::size_t kCols[] = {32, 64, 96, 160, 2048 + 32};

class Backends : public testing::TestWithParam<Context> {
 protected:
  // Calls body(rows, cols, content, random) for every shape and content.
  template <typename Body>
  void for_each_matrix(Body body) {
    std::mt19937 random(kSeed);
    for (const std::size_t rows : kRows) {
      for (const std::size_t cols : kCols) {
        for (const Content content : kContents) {
          SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", content "
                                          << static_cast<int>(content) << ", seed " << kSeed);
          body(rows, cols, content, random);
        }
      }
    }
  }

  Context backend_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Each,
                         Backends,
                         testing::ValuesIn(test::contexts_of_this_machine()),
                         [](const auto& test) { return test::name_of(test.param); });

struct Quantized {
  std::vector<std::uint8_t> packed;
  std::vector<std::uint8_t> scales;

  friend bool operator==(const Quantized&, const Quantized&) = default;
};

Quantized quantize(const Context& context, const MxSpec& spec, ConstFloatMatrix values) {
  // One byte more in front, so that the output is unaligned too.
  const std::size_t packed_bytes = values.rows * mx_packed_bytes(spec.element, values.cols);
  Quantized result{std::vector<std::uint8_t>(packed_bytes + 1),
                   std::vector<std::uint8_t>(values.rows * values.cols / kMxBlock)};
  mx_quantize(context, spec, values, std::span(result.packed).subspan(1), result.scales);
  return result;
}

TEST_P(Backends, MxQuantizeE2m1GivesTheSameBytes) {
  for_each_matrix([&](std::size_t rows, std::size_t cols, Content content, std::mt19937& random) {
    Matrix matrix(rows, cols);
    fill(matrix, content, random);
    for (const ScaleRule rule :
         {ScaleRule::kFloor, ScaleRule::kEven, ScaleRule::kRceil, ScaleRule::kCeil}) {
      for (const TieRule ties : {TieRule::kEven, TieRule::kSeed}) {
        const MxSpec spec{ElementFormat::kE2m1, rule, ties};
        ASSERT_EQ(quantize(backend_, spec, matrix.view()),
                  quantize(kReference, spec, matrix.view()));
      }
    }
  });
}

TEST_P(Backends, MxQuantizeOtherElementsGiveTheSameBytes) {
  for_each_matrix([&](std::size_t rows, std::size_t cols, Content content, std::mt19937& random) {
    Matrix matrix(rows, cols);
    fill(matrix, content, random);
    for (const ElementFormat element : kOtherElements) {
      for (const ScaleRule rule :
           {ScaleRule::kFloor, ScaleRule::kEven, ScaleRule::kRceil, ScaleRule::kCeil}) {
        const MxSpec spec{element, rule};
        ASSERT_EQ(quantize(backend_, spec, matrix.view()),
                  quantize(kReference, spec, matrix.view()));
      }
    }
  });
}

TEST_P(Backends, EveryBf16RoundsAlikeInABlockOfScaleOne) {
  for (const auto& [element, largest] : {std::pair{ElementFormat::kE2m1, 4.0F},
                                         std::pair{ElementFormat::kE2m3, 4.0F},
                                         std::pair{ElementFormat::kE3m2, 16.0F},
                                         std::pair{ElementFormat::kE4m3, 256.0F},
                                         std::pair{ElementFormat::kE5m2, 32768.0F}}) {
    Matrix matrix(0x8000 / 16, 32);
    const std::span<float> values = matrix.all();
    for (std::uint32_t i = 0; i < 0x8000; ++i) {
      const float value = bf16_to_float(static_cast<std::uint16_t>(i));
      values[2 * i] = value < largest * 1.99F ? value : 0;  // without infinity and NaN
      values[2 * i + 1] = -largest;
    }
    const MxSpec spec{element, ScaleRule::kFloor};
    EXPECT_EQ(quantize(backend_, spec, matrix.view()), quantize(kReference, spec, matrix.view()));
  }
}

TEST_P(Backends, MxDequantizeOfOtherElementsGivesTheSameBits) {
  std::mt19937 random(kSeed);
  for (const ElementFormat element : kOtherElements) {
    for (const std::size_t cols : kCols) {
      // Every byte, NaN and infinity among them.
      std::vector<std::uint8_t> packed(3 * mx_packed_bytes(element, cols));
      std::vector<std::uint8_t> scales(3 * cols / kMxBlock);
      std::generate(
          packed.begin(), packed.end(), [&] { return static_cast<std::uint8_t>(random()); });
      std::generate(
          scales.begin(), scales.end(), [&] { return static_cast<std::uint8_t>(random() % 255); });
      Matrix got(3, cols);
      Matrix want(3, cols);
      mx_dequantize(backend_, element, packed, scales, got.view());
      mx_dequantize(kReference, element, packed, scales, want.view());
      expect_same_floats(got.all(), want.all());
    }
  }
}

TEST_P(Backends, MxDequantizeGivesTheSameBits) {
  std::mt19937 random(kSeed);
  for (const std::size_t rows : kRows) {
    for (const std::size_t cols : kCols) {
      std::vector<std::uint8_t> packed(rows * cols / 2);
      std::vector<std::uint8_t> scales(rows * cols / kMxBlock);
      std::generate(
          packed.begin(), packed.end(), [&] { return static_cast<std::uint8_t>(random()); });
      std::generate(scales.begin(), scales.end(), [&] {
        return static_cast<std::uint8_t>(random() % 255);  // 255 is NaN, compared elsewhere
      });
      Matrix got(rows, cols);
      Matrix want(rows, cols);
      mx_dequantize(backend_, ElementFormat::kE2m1, packed, scales, got.view());
      mx_dequantize(kReference, ElementFormat::kE2m1, packed, scales, want.view());
      expect_same_floats(got.all(), want.all());
    }
  }
}

struct Search {
  Matrix candidates;
  std::vector<float> importance;
};

Search random_search(std::size_t num_candidates, std::size_t cols, std::mt19937& random) {
  Search search{Matrix(num_candidates, cols), std::vector<float>(cols)};
  for (float& s : search.candidates.all()) {
    s = std::exp(std::normal_distribution<float>(0, 0.7F)(random));
  }
  std::fill_n(search.candidates.all().begin(), cols, 1.0F);
  for (float& weight : search.importance) {
    weight = std::exp(std::normal_distribution<float>(-1, 1)(random));
  }
  return search;
}

std::vector<double> error_curve(const Context& context,
                                const MxSpec& spec,
                                ConstFloatMatrix values,
                                Search& search) {
  std::vector<double> sums(values.cols / kMxBlock * search.candidates.view().rows, 0.125);
  mx_error_curve(context, spec, values, search.importance, search.candidates.view(), sums);
  return sums;
}

TEST_P(Backends, MxErrorCurveGivesTheSameBits) {
  for_each_matrix([&](std::size_t rows, std::size_t cols, Content content, std::mt19937& random) {
    Matrix matrix(rows, cols);
    fill(matrix, content, random);
    if (content == Content::kAnyFinite) {  // products must stay finite
      for (float& value : matrix.all()) {
        value *= 0x1p-60F;
      }
    }
    Search search = random_search(3, cols, random);
    for (const ScaleRule rule : {ScaleRule::kFloor, ScaleRule::kEven}) {
      for (const TieRule ties : {TieRule::kEven, TieRule::kSeed}) {
        const MxSpec spec{ElementFormat::kE2m1, rule, ties};
        ASSERT_EQ(bits_of(error_curve(backend_, spec, matrix.view(), search)),
                  bits_of(error_curve(kReference, spec, matrix.view(), search)));
      }
    }
  });
}

TEST_P(Backends, MxErrorCurveOfOtherElementsGivesTheSameBits) {
  std::mt19937 random(kSeed);
  Matrix matrix(5, 1056);
  fill(matrix, Content::kOrdinary, random);
  Search search = random_search(3, 1056, random);
  for (const ElementFormat element : kOtherElements) {
    for (const ScaleRule rule : {ScaleRule::kFloor, ScaleRule::kEven}) {
      const MxSpec spec{element, rule};
      EXPECT_EQ(bits_of(error_curve(backend_, spec, matrix.view(), search)),
                bits_of(error_curve(kReference, spec, matrix.view(), search)));
    }
  }
}

TEST_P(Backends, MxErrorCurveCutByRowsIsTheWhole) {
  std::mt19937 random(kSeed);
  Matrix matrix(53, 160);
  fill(matrix, Content::kOrdinary, random);
  Search search = random_search(11, 160, random);
  const std::vector<double> whole = error_curve(backend_, {}, matrix.view(), search);
  std::vector<double> parts(whole.size(), 0.125);
  for (const auto& [first, count] :
       {std::pair<std::size_t, std::size_t>{0, 16}, {16, 32}, {48, 5}}) {
    const ConstFloatMatrix part(matrix.view().data + first * 160, count, 160);
    mx_error_curve(backend_, {}, part, search.importance, search.candidates.view(), parts);
  }
  EXPECT_EQ(bits_of(parts), bits_of(whole));
}

TEST_P(Backends, MxQuantizeCutByRowsIsTheWhole) {
  std::mt19937 random(kSeed);
  Matrix matrix(17, 96);
  fill(matrix, Content::kOrdinary, random);
  const Quantized whole = quantize(backend_, {}, matrix.view());
  Quantized parts{std::vector<std::uint8_t>(1), {}};
  for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>{0, 5}, {5, 12}}) {
    const Quantized part = quantize(backend_, {}, {matrix.view().data + first * 96, count, 96});
    parts.packed.insert(parts.packed.end(), part.packed.begin() + 1, part.packed.end());
    parts.scales.insert(parts.scales.end(), part.scales.begin(), part.scales.end());
  }
  EXPECT_EQ(parts, whole);
}

TEST_P(Backends, DecodeGivesTheSameBitsForEveryPattern) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    std::vector<std::byte> stored(2 * 0x10000 + 1);
    for (std::size_t i = 0; i < 0x10000; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      std::memcpy(stored.data() + 1 + 2 * i, &bits, 2);
    }
    Matrix got(256, 256);
    Matrix want(256, 256);
    const std::span<const std::byte> unaligned = std::span(stored).subspan(1);
    const auto first = decode_to_float(backend_, dtype, unaligned, got.view());
    EXPECT_EQ(first, decode_to_float(kReference, dtype, unaligned, want.view()));
    EXPECT_EQ(first,
              (MatrixPosition{dtype == DType::kBf16 ? 0x7fU : 0x7cU,
                              dtype == DType::kBf16 ? 0x80U : 0x00U}));
    expect_same_floats(got.all(), want.all());
  }
}

TEST_P(Backends, DecodeFindsTheFirstNonFiniteAnywhere) {
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    const std::size_t size = dtype == DType::kF32 ? 4 : 2;
    for (std::size_t place = 0; place < 37; ++place) {
      std::vector<std::byte> stored(3 * 37 * size);
      Matrix out(3, 37);
      EXPECT_EQ(decode_to_float(backend_, dtype, stored, out.view()), std::nullopt);
      const std::size_t index = 37 + place;
      stored[(index + 1) * size - 1] = std::byte{0xff};  // NaN
      stored[(index + 1) * size - 2] = std::byte{0xff};
      EXPECT_EQ(decode_to_float(backend_, dtype, stored, out.view()), (MatrixPosition{1, place}));
    }
  }
}

TEST_P(Backends, EncodeGivesTheSameBytes) {
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    const std::size_t size = dtype == DType::kF32 ? 4 : 2;
    std::mt19937 random(kSeed);
    for (const std::size_t cols : {1UL, 31UL, 64UL, 1000UL}) {
      Matrix matrix(7, cols);
      for (float& value : matrix.all()) {
        value = float_from_bits(static_cast<std::uint32_t>(random()));  // NaN and infinity included
      }
      std::vector<std::byte> got(7 * cols * size + 1);
      std::vector<std::byte> want(7 * cols * size + 1);
      const auto encode = [&](const Context& context, std::vector<std::byte>& stored) {
        return encode_from_float(context, matrix.view(), dtype, std::span(stored).subspan(1));
      };
      EXPECT_EQ(encode(backend_, got), encode(kReference, want));
      EXPECT_EQ(got, want);
    }
  }
}

TEST_P(Backends, EncodeReportsWhatRoundsBeyondTheLargest) {
  Matrix matrix(2, 40);
  std::vector<std::byte> stored(2 * 40 * 2);
  matrix.all()[45] = float_from_bits(0x7f7f7fff);
  EXPECT_EQ(encode_from_float(backend_, matrix.view(), DType::kBf16, stored), std::nullopt);
  matrix.all()[45] = float_from_bits(0x7f7f8000);
  EXPECT_EQ(encode_from_float(backend_, matrix.view(), DType::kBf16, stored),
            (MatrixPosition{1, 5}));
  EXPECT_EQ(encode_from_float(backend_, matrix.view(), DType::kF16, stored),
            (MatrixPosition{1, 5}));
}

TEST_P(Backends, ScaleMatrixGivesTheSameBits) {
  for_each_matrix([&](std::size_t rows, std::size_t cols, Content content, std::mt19937& random) {
    std::vector<float> factors(cols);
    std::vector<float> divisors(rows);
    for (float& factor : factors) {
      factor = std::exp(std::normal_distribution<float>()(random));
    }
    for (float& divisor : divisors) {
      divisor = std::exp(std::normal_distribution<float>()(random));
    }
    const std::span<const float> none;
    for (const auto& [columns, row_side] :
         {std::pair<std::span<const float>, std::span<const float>>{factors, divisors},
          {factors, none},
          {none, divisors},
          {none, none}}) {
      Matrix got(rows, cols);
      fill(got, content, random);
      Matrix want = got;
      for (const MatrixFactors& sides :
           {MatrixFactors{.columns = columns, .row_divisors = row_side},
            MatrixFactors{.rows = row_side, .column_divisors = columns},
            MatrixFactors{columns, row_side, columns, row_side}}) {
        scale_matrix(backend_, got.view(), sides);
        scale_matrix(kReference, want.view(), sides);
      }
      expect_same_floats(got.all(), want.all());
    }
  });
}

TEST_P(Backends, MxErrorCurveWithRowWeightsGivesTheSameBits) {
  std::mt19937 random(kSeed);
  Matrix matrix(37, 96);
  fill(matrix, Content::kOrdinary, random);
  Search search = random_search(3, 96, random);
  std::vector<double> weights;
  for (std::size_t row = 0; row < 37; ++row) {
    weights.push_back(0.1 + static_cast<double>(row * row % 11));
  }
  std::vector<double> got(9);
  std::vector<double> want(9);
  const ConstFloatMatrix candidates = search.candidates.view();
  mx_error_curve(backend_, {}, matrix.view(), search.importance, candidates, got, weights);
  mx_error_curve(kReference, {}, matrix.view(), search.importance, candidates, want, weights);
  EXPECT_EQ(bits_of(got), bits_of(want));
}

TEST_P(Backends, AddErrorsGivesTheSameBits) {
  std::mt19937 random(kSeed);
  for (const std::size_t rows : kRows) {
    for (const std::size_t cols : {1UL, 15UL, 16UL, 37UL, 96UL, 2080UL}) {
      Matrix got(rows, cols);
      Matrix want(rows, cols);
      fill(got, Content::kOrdinary, random);
      fill(want, Content::kOrdinary, random);
      const std::vector<float> weights = random_search(1, cols, random).importance;
      for (const std::span<const float> used : {std::span<const float>(), std::span(weights)}) {
        ErrorSums cpu_sums{1, 2};
        ErrorSums reference_sums{1, 2};
        add_errors(backend_, got.view(), want.view(), cpu_sums, used);
        add_errors(kReference, got.view(), want.view(), reference_sums, used);
        EXPECT_EQ(bits_of({cpu_sums.squared_error, cpu_sums.squared_norm}),
                  bits_of({reference_sums.squared_error, reference_sums.squared_norm}));
      }
    }
  }
}

}  // namespace
}  // namespace quantmill
