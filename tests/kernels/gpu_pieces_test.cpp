// Matrices that are larger than what a GPU's lane holds: worked on in pieces, with the bytes of the
// whole.

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/block_grid.h"
#include "kernels/compare.h"
#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "kernels/gptq.h"
#include "kernels/int4.h"
#include "kernels/int4_pack.h"
#include "kernels/magnitudes.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"
#include "kernels/scale.h"
#include "tests/kernels/random_matrix.h"

namespace quantmill {
namespace {

// 10 MB of floats; a lane of contexts_of_this_machine has 8 MB.
constexpr std::size_t kRows = 613;
constexpr std::size_t kCols = 4096;
constexpr std::size_t kSize = kRows * kCols;
static_assert(kSize * sizeof(float) > Gpu::kSmallestBytes);

class GpuPieces : public testing::TestWithParam<Context> {
 protected:
  GpuPieces() : matrix_(kRows, kCols), weights_(kCols) {
    std::mt19937 random(test::kSeed);
    test::fill(matrix_, test::Content::kOrdinary, random);
    for (float& weight : weights_) {
      weight = std::abs(test::random_value(test::Content::kOrdinary, random)) + 0.001F;
    }
  }

  // What `run` leaves in the bytes that it is given, with each backend.
  template <typename Value, typename Run>
  void expect_same(std::size_t count, Value before, const Run& run) {
    std::vector<Value> got(count, before);
    std::vector<Value> want(count, before);
    run(GetParam(), std::span(got));
    run(cpu_, std::span(want));
    ASSERT_EQ(std::memcmp(got.data(), want.data(), count * sizeof(Value)), 0);
  }

  Context cpu_{Backend::kCpu, best_isa()};
  test::Matrix matrix_;
  std::vector<float> weights_;
};

std::vector<Context> gpus() {
  std::vector<Context> found;
  for (const Context& context : test::contexts_of_this_machine()) {
    if (context.backend == Backend::kGpu) {
      found.push_back(context);
    }
  }
  return found;
}

INSTANTIATE_TEST_SUITE_P(Each, GpuPieces, testing::ValuesIn(gpus()), [](const auto& test) {
  return test::name_of(test.param);
});

TEST_P(GpuPieces, Conversions) {
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    const std::size_t bytes = kSize * (dtype == DType::kF32 ? 4 : 2);
    expect_same(bytes, std::byte{0}, [&](const Context& context, std::span<std::byte> stored) {
      (void)encode_from_float(context, matrix_.view(), dtype, stored);
    });
    std::vector<std::byte> stored(bytes);
    (void)encode_from_float(cpu_, matrix_.view(), dtype, stored);
    std::memset(&stored[bytes - 8], 0xff, 8);  // NaN in the last piece
    expect_same(kSize, 0.0F, [&](const Context& context, std::span<float> values) {
      const auto bad =
          decode_to_float(context, dtype, stored, FloatMatrix{values.data(), kRows, kCols});
      ASSERT_TRUE(bad);
      EXPECT_EQ(*bad, (MatrixPosition{kRows - 1, kCols - (dtype == DType::kF32 ? 2 : 4)}));
    });
  }
}

TEST_P(GpuPieces, Factors) {
  std::vector<float> rows(kRows);
  std::iota(rows.begin(), rows.end(), 1.3F);
  expect_same(kSize, 0.7F, [&](const Context& context, std::span<float> values) {
    scale_matrix(context,
                 FloatMatrix{values.data(), kRows, kCols},
                 {.columns = weights_, .rows = rows, .row_divisors = rows});
  });
}

TEST_P(GpuPieces, Mx) {
  const MxSpec spec{ElementFormat::kE2m1, ScaleRule::kMse};
  std::vector<std::uint8_t> scales(kSize / kMxBlock);
  std::vector<std::uint8_t> packed(kSize / 2);
  mx_quantize(cpu_, spec, matrix_.view(), packed, scales, weights_);
  const auto zero = std::uint8_t{0};
  expect_same(packed.size(), zero, [&](const Context& context, std::span<std::uint8_t> codes) {
    std::vector<std::uint8_t> found(scales.size());
    mx_quantize(context, spec, matrix_.view(), codes, found, weights_);
    EXPECT_EQ(found, scales);
  });
  expect_same(packed.size(), zero, [&](const Context& context, std::span<std::uint8_t> codes) {
    mx_encode(context, spec.element, matrix_.view(), scales, codes);
  });
  expect_same(kSize, 0.0F, [&](const Context& context, std::span<float> values) {
    mx_dequantize(context, spec.element, packed, scales, FloatMatrix{values.data(), kRows, kCols});
  });
}

TEST_P(GpuPieces, ErrorCurves) {
  constexpr std::size_t kCandidates = 60;
  std::vector<float> candidates(kCandidates * kCols);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    candidates[i] = 0.5F + weights_[i % kCols] * static_cast<float>(i / kCols);
  }
  std::vector<double> row_weights(128);
  std::iota(row_weights.begin(), row_weights.end(), 0.5);
  const ConstFloatMatrix rows{matrix_.view().data, 128, kCols};
  expect_same(
      kCols / kMxBlock * kCandidates, 1.0, [&](const Context& context, std::span<double> sums) {
        mx_error_curve(context,
                       {},
                       rows,
                       weights_,
                       {candidates.data(), kCandidates, kCols},
                       sums,
                       row_weights);
      });
}

TEST_P(GpuPieces, ErrorsAndMagnitudes) {
  std::vector<float> other(matrix_.all().begin(), matrix_.all().end());
  for (float& value : other) {
    value *= 1.01F;
  }
  expect_same(2, 0.5, [&](const Context& context, std::span<double> found) {
    ErrorSums sums{found[0], found[1]};
    add_errors(context,
               ConstFloatMatrix(other.data(), kRows, kCols),
               ConstFloatMatrix(matrix_.view()),
               sums,
               weights_);
    found[0] = sums.squared_error;
    found[1] = sums.squared_norm;
  });
  expect_same(2 * kCols + kRows, 0.25, [&](const Context& context, std::span<double> sums) {
    add_magnitudes(context,
                   matrix_.view(),
                   weights_,
                   {sums.first(kCols), sums.subspan(kCols, kCols)},
                   sums.subspan(2 * kCols));
  });
  expect_same(1, 0.0F, [&](const Context& context, std::span<float> amax) {
    block_amax(context, matrix_.view(), {kRows, kCols}, FloatMatrix{amax.data(), 1, 1});
  });
}

TEST_P(GpuPieces, Fp8) {
  const BlockGrid grid{.rows = 128, .cols = 128, .first_row = 7};
  const std::size_t scale_rows = num_block_rows(grid, kRows);
  const std::size_t scale_cols = num_block_cols(grid, kCols);
  std::vector<float> scales(scale_rows * scale_cols, 0.001F);
  const FloatMatrix scale_matrix{scales.data(), scale_rows, scale_cols};
  block_amax(cpu_, matrix_.view(), grid, scale_matrix);
  std::vector<std::uint8_t> codes(kSize);
  fp8_quantize(cpu_, matrix_.view(), scale_matrix, grid, codes);
  expect_same(kSize, std::uint8_t{0}, [&](const Context& context, std::span<std::uint8_t> found) {
    fp8_quantize(context, matrix_.view(), scale_matrix, grid, found);
  });
  expect_same(kSize, 0.0F, [&](const Context& context, std::span<float> values) {
    (void)fp8_dequantize(
        context, codes, scale_matrix, grid, FloatMatrix{values.data(), kRows, kCols});
  });
}

TEST_P(GpuPieces, Nvfp4) {
  const GlobalScale global = nvfp4_global_scale(0.1F, GlobalScaleUse::kDivides);
  std::vector<std::uint8_t> scales(kSize / kNvfp4Block);
  nvfp4_search_scales(cpu_, matrix_.view(), global, weights_, scales);
  std::vector<std::uint8_t> packed(kSize / 2);
  nvfp4_quantize(cpu_, matrix_.view(), scales, global, packed);
  expect_same(
      scales.size(), std::uint8_t{0}, [&](const Context& context, std::span<std::uint8_t> found) {
        nvfp4_search_scales(context, matrix_.view(), global, weights_, found);
      });
  expect_same(
      packed.size(), std::uint8_t{0}, [&](const Context& context, std::span<std::uint8_t> found) {
        nvfp4_quantize(context, matrix_.view(), scales, global, found);
      });
  expect_same(kSize, 0.0F, [&](const Context& context, std::span<float> values) {
    (void)nvfp4_dequantize(
        context, packed, scales, global, FloatMatrix{values.data(), kRows, kCols});
  });
}

TEST_P(GpuPieces, Integers) {
  const IntSpec spec{.bits = 4, .group = 128, .is_symmetric = false};
  constexpr std::size_t kGroups = kCols / 128;
  std::vector<float> scales(kRows * kGroups);
  std::vector<std::int8_t> zero_points(scales.size());
  const FloatMatrix scale_matrix{scales.data(), kRows, kGroups};
  int_search_scales(cpu_, spec, matrix_.view(), weights_, scale_matrix, zero_points);
  std::vector<std::int8_t> codes(kSize);
  int_quantize(cpu_, spec, matrix_.view(), scale_matrix, zero_points, codes);
  expect_same(scales.size(), 0.0F, [&](const Context& context, std::span<float> found) {
    std::vector<std::int8_t> zeros(zero_points.size());
    int_search_scales(
        context, spec, matrix_.view(), weights_, {found.data(), kRows, kGroups}, zeros);
    EXPECT_EQ(zeros, zero_points);
  });
  expect_same(kSize, std::int8_t{0}, [&](const Context& context, std::span<std::int8_t> found) {
    int_quantize(context, spec, matrix_.view(), scale_matrix, zero_points, found);
  });
  expect_same(kSize, 0.0F, [&](const Context& context, std::span<float> values) {
    (void)int_dequantize(
        context, codes, scale_matrix, zero_points, {}, {values.data(), kRows, kCols});
  });
}

TEST_P(GpuPieces, PackedIntegers) {
  constexpr std::size_t kManyRows = 4 * kRows;
  std::vector<std::int8_t> codes(kManyRows * kCols);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::int8_t>(static_cast<int>(i * 7 % 16) - 8);
  }
  const IntPacking packing;
  std::vector<std::uint8_t> columns(codes.size() / 2);
  std::vector<std::uint8_t> rows(int_packed_words(4, kManyRows) * kCols * 4);
  int_pack_columns(cpu_, packing, codes, kManyRows, kCols, columns);
  int_pack_rows(cpu_, packing, codes, kManyRows, kCols, rows);
  using Bytes = std::span<std::uint8_t>;
  using Codes = std::span<std::int8_t>;
  expect_same(columns.size(), std::uint8_t{0}, [&](const Context& context, Bytes packed) {
    int_pack_columns(context, packing, codes, kManyRows, kCols, packed);
  });
  expect_same(rows.size(), std::uint8_t{0}, [&](const Context& context, Bytes packed) {
    int_pack_rows(context, packing, codes, kManyRows, kCols, packed);
  });
  expect_same(codes.size(), std::int8_t{0}, [&](const Context& context, Codes unpacked) {
    int_unpack_columns(context, packing, columns, kManyRows, kCols, unpacked);
  });
  expect_same(codes.size(), std::int8_t{0}, [&](const Context& context, Codes unpacked) {
    int_unpack_rows(context, packing, rows, kManyRows, kCols, unpacked);
  });
}

TEST_P(GpuPieces, ErrorFeedback) {
  constexpr std::size_t kFew = 160;
  constexpr std::size_t kManyRows = kSize / kFew;
  std::mt19937 random(test::kSeed);
  ErrorFeedback feedback{{}, std::vector<float>(kFew * kFew)};
  for (std::size_t i = 0; i < kFew; ++i) {
    feedback.order.push_back(static_cast<std::uint32_t>(i * 7 % kFew));
  }
  for (float& factor : feedback.factors) {
    factor = test::random_value(test::Content::kOrdinary, random);
  }
  const std::vector<float> scales(kManyRows * (kFew / kMxBlock), 0.0078125F);
  const ConstFloatMatrix values{matrix_.view().data, kManyRows, kFew};
  expect_same(kManyRows * kFew, 0.0F, [&](const Context& context, std::span<float> rounded) {
    gptq_round(context,
               {},
               feedback,
               values,
               {scales.data(), kManyRows, kFew / kMxBlock},
               {},
               FloatMatrix{rounded.data(), kManyRows, kFew});
  });
}

}  // namespace
}  // namespace quantmill
