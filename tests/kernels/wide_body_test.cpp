// The bodies of the cpu backend with 16 lanes, as AVX-512 uses them, compiled here for any machine:
// their order of lanes, packing and tails are tested even where AVX-512 does not run.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/backends.h"
#include "kernels/codec.h"
#include "kernels/cpu/body_entries.h"
#include "kernels/cpu/entries.h"

namespace quantmill {
namespace {

constexpr cpu::Entries kWide = cpu::make_entries<16>();
constexpr std::size_t kBlocks = 50;
constexpr std::size_t kValues = kBlocks * kMxBlock;

// Floats of every exponent from 2^-126 to 2^66, of either sign, with zeros and small halves among
// them.
std::vector<float> values() {
  std::mt19937 random(7);
  std::vector<float> result(kValues);
  for (std::size_t i = 0; i < kValues; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    result[i] = i < kValues / 2 ? float_from_bits(bits & 0xe07fffffU)
                                : std::ldexp(static_cast<float>(bits % 29) - 14.0F, -2);
  }
  return result;
}

template <typename T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Every format, and the seed's ties of e2m1.
const MxSpec kSpecs[] = {{ElementFormat::kE2m1, ScaleRule::kFloor, TieRule::kEven},
                         {ElementFormat::kE2m1, ScaleRule::kFloor, TieRule::kSeed},
                         {ElementFormat::kE2m3, ScaleRule::kEven},
                         {ElementFormat::kE3m2, ScaleRule::kEven},
                         {ElementFormat::kE4m3, ScaleRule::kEven},
                         {ElementFormat::kE5m2, ScaleRule::kEven}};

TEST(WideBody, QuantizesAndDequantizesAsTheReference) {
  const std::vector<float> from = values();
  for (const MxSpec& spec : kSpecs) {
    std::vector<std::uint8_t> got(mx_packed_bytes(spec.element, kValues));
    std::vector<std::uint8_t> got_scales(kBlocks);
    kWide.mx_quantize({from.data(),
                       got.data(),
                       got_scales.data(),
                       kBlocks,
                       mx_scale_carry(spec.scale_rule, spec.element),
                       spec.ties == TieRule::kSeed,
                       spec.element,
                       nullptr});
    std::vector<std::uint8_t> want(got.size());
    std::vector<std::uint8_t> want_scales(kBlocks);
    reference::mx_quantize(spec, {from.data(), 1, kValues}, want, want_scales, {});
    EXPECT_EQ(got, want);
    EXPECT_EQ(got_scales, want_scales);

    std::vector<float> back(kValues);
    std::vector<float> want_back(kValues);
    kWide.mx_dequantize({want.data(), want_scales.data(), back.data(), kBlocks, spec.element});
    reference::mx_dequantize(spec.element, want, want_scales, {want_back.data(), 1, kValues});
    EXPECT_TRUE(same_bytes(back, want_back));
  }
}

// As rows of one block of columns: kWide's error curve and the reference's are the same bits.
void expect_same_curve(const MxSpec& spec) {
  const std::vector<float> from = values();
  constexpr std::size_t kGroups = (kBlocks + kMxCurveRows - 1) / kMxCurveRows;
  std::vector<float> magnitudes(kGroups * kMxBlock * kMxCurveRows);
  std::vector<float> s(kMxBlock);
  std::vector<float> weights(kMxBlock);
  std::vector<float> importance(kMxBlock);
  for (std::size_t c = 0; c < kMxBlock; ++c) {
    s[c] = 0.5F + 0.07F * static_cast<float>(c % 23);
    importance[c] = 0.125F * static_cast<float>(c % 19);
    weights[c] = importance[c] * (1.0F / s[c]);
    for (std::size_t row = 0; row < kBlocks; ++row) {
      magnitudes[(row / kMxCurveRows * kMxBlock + c) * kMxCurveRows + row % kMxCurveRows] =
          std::abs(from[row * kMxBlock + c]);
    }
  }
  std::vector<double> row_weights(kGroups * kMxCurveRows);
  for (std::size_t row = 0; row < kBlocks; ++row) {
    row_weights[row] = 1 + 0.3 * static_cast<double>(row % 7);
  }
  double got = 0.25;
  kWide.add_curve({magnitudes.data(),
                   kGroups,
                   s.data(),
                   weights.data(),
                   mx_scale_carry(spec.scale_rule, spec.element),
                   spec.ties == TieRule::kSeed,
                   spec.element,
                   spec.scale_rule == ScaleRule::kMse,
                   row_weights.data(),
                   &got});
  std::vector<double> want{0.25};
  reference::mx_error_curve(spec,
                            {from.data(), kBlocks, kMxBlock},
                            importance,
                            {s.data(), 1, kMxBlock},
                            want,
                            std::span(row_weights).first(kBlocks));
  EXPECT_EQ(std::bit_cast<std::uint64_t>(got), std::bit_cast<std::uint64_t>(want[0]));
}

TEST(WideBody, AddsTheErrorCurveAsTheReference) {
  for (const MxSpec& spec : kSpecs) {
    expect_same_curve(spec);
    expect_same_curve({spec.element, ScaleRule::kMse});
  }
}

// Importance of the columns that are searched by.
std::vector<float> weights() {
  std::vector<float> result(kValues);
  for (std::size_t i = 0; i < kValues; ++i) {
    result[i] = 0.125F * static_cast<float>(i % 19);
  }
  return result;
}

TEST(WideBody, SearchesScalesAsTheReference) {
  const std::vector<float> from = values();
  const std::vector<float> importance = weights();
  const ConstFloatMatrix row(from.data(), 1, kValues);
  for (const ElementFormat element :
       {ElementFormat::kE2m1, ElementFormat::kE2m3, ElementFormat::kE3m2}) {
    const MxSpec spec{element, ScaleRule::kMse};
    std::vector<std::uint8_t> got(mx_packed_bytes(element, kValues));
    std::vector<std::uint8_t> got_scales(kBlocks);
    kWide.mx_quantize({from.data(),
                       got.data(),
                       got_scales.data(),
                       kBlocks,
                       mx_scale_carry(spec.scale_rule, element),
                       false,
                       element,
                       importance.data()});
    std::vector<std::uint8_t> want(got.size());
    std::vector<std::uint8_t> want_scales(kBlocks);
    reference::mx_quantize(spec, row, want, want_scales, importance);
    EXPECT_EQ(got, want);
    EXPECT_EQ(got_scales, want_scales);
  }
}

TEST(WideBody, ConvertsAsTheReference) {
  std::vector<std::byte> stored(2 * 0x10000 - 2);  // every pattern but the last: a tail of 15
  for (std::size_t i = 0; i < 0xffff; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    std::memcpy(stored.data() + 2 * i, &bits, 2);
  }
  std::vector<float> got(0xffff);
  std::vector<float> want(0xffff);
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    EXPECT_FALSE(kWide.decode({stored.data(), got.data(), 0xffff, dtype == DType::kBf16}));
    reference::decode_to_float(dtype, stored, {want.data(), 1, 0xffff});
    EXPECT_TRUE(same_bytes(got, want));
  }
  std::vector<std::byte> encoded(stored.size());
  std::vector<std::byte> want_encoded(stored.size());
  EXPECT_FALSE(kWide.encode({want.data(), encoded.data(), 0xffff}));
  reference::encode_from_float({want.data(), 1, 0xffff}, DType::kBf16, want_encoded);
  EXPECT_EQ(encoded, want_encoded);
}

TEST(WideBody, Fp8AsTheReference) {
  const std::vector<float> from = values();
  const std::vector<float> scales(kValues / 90 + 1, 0.0625F);
  const BlockGrid grid{.rows = 1, .cols = 90};  // five vectors and a tail of 10
  const ConstFloatMatrix scale_row(scales.data(), 1, scales.size());
  std::vector<std::uint8_t> codes(kValues);
  std::vector<std::uint8_t> want_codes(kValues);
  kWide.fp8_encode({from.data(), scales.data(), codes.data(), kValues, grid.cols});
  reference::fp8_quantize({from.data(), 1, kValues}, scale_row, grid, want_codes);
  EXPECT_EQ(codes, want_codes);
  std::vector<float> back(kValues);
  std::vector<float> want_back(kValues);
  EXPECT_TRUE(kWide.fp8_decode({codes.data(), scales.data(), back.data(), kValues, grid.cols}));
  reference::fp8_dequantize(codes, scale_row, grid, {want_back.data(), 1, kValues});
  EXPECT_TRUE(same_bytes(back, want_back));
}

TEST(WideBody, IntegersAsTheReference) {
  const std::vector<float> from = values();
  const IntSpec spec{4, 100, false, IntScaleRule::kHalfRange, DType::kF32};  // tails of 4
  const std::size_t groups = kValues / spec.group;
  std::vector<float> scales(groups);
  std::vector<std::int8_t> zero_points(groups);
  const ConstFloatMatrix row(from.data(), 1, kValues);
  reference::int_scales(spec, row, 1, {scales.data(), 1, groups}, zero_points);
  std::vector<std::int8_t> codes(kValues);
  std::vector<std::int8_t> want_codes(kValues);
  kWide.int_encode({from.data(),
                    scales.data(),
                    zero_points.data(),
                    codes.data(),
                    spec.group,
                    groups,
                    {-8, 7, 0}});
  reference::int_quantize(spec, row, {scales.data(), 1, groups}, zero_points, want_codes);
  EXPECT_EQ(codes, want_codes);
  std::vector<float> back(kValues);
  std::vector<float> want_back(kValues);
  EXPECT_TRUE(kWide.int_decode(
      {codes.data(), scales.data(), zero_points.data(), back.data(), spec.group, groups}));
  reference::int_dequantize(
      codes, {scales.data(), 1, groups}, zero_points, {}, {want_back.data(), 1, kValues});
  EXPECT_TRUE(same_bytes(back, want_back));

  const std::vector<float> importance = weights();
  const std::size_t last = groups - 1;  // its values are small
  double want_error = 0;
  for (std::size_t c = last * spec.group; c < groups * spec.group; ++c) {
    want_error += std::pow((double{back[c]} - double{from[c]}) * double{importance[c]}, 2);
  }
  const float error = kWide.int_error({from.data() + last * spec.group,
                                       importance.data() + last * spec.group,
                                       spec.group,
                                       scales[last],
                                       {-8, 7, zero_points[last]}});
  EXPECT_NEAR(error, want_error, 1e-5 * want_error);
}

TEST(WideBody, Nvfp4AsTheReference) {
  const std::vector<float> from = values();
  const GlobalScale global{3, GlobalScaleUse::kDivides};
  std::vector<float> factors(256);
  for (std::size_t byte = 0; byte < factors.size(); ++byte) {
    factors[byte] = nvfp4_factor(static_cast<std::uint8_t>(byte), global);
  }
  std::vector<std::uint8_t> scales(kValues / 16);
  for (std::size_t block = 0; block < scales.size(); ++block) {
    scales[block] = static_cast<std::uint8_t>(block % 0x7e + 1);
  }
  std::vector<std::uint8_t> packed(kValues / 2);
  std::vector<std::uint8_t> want_packed(kValues / 2);
  kWide.nvfp4_quantize({from.data(), scales.data(), factors.data(), packed.data(), kBlocks});
  reference::nvfp4_quantize({from.data(), 1, kValues}, scales, global, want_packed);
  EXPECT_EQ(packed, want_packed);
  std::vector<float> back(kValues);
  std::vector<float> want_back(kValues);
  EXPECT_TRUE(
      kWide.nvfp4_dequantize({packed.data(), scales.data(), factors.data(), back.data(), kBlocks}));
  reference::nvfp4_dequantize(packed, scales, global, {want_back.data(), 1, kValues});
  EXPECT_TRUE(same_bytes(back, want_back));

  const std::vector<float> importance = weights();
  std::vector<std::uint8_t> want_scales(scales.size());
  reference::nvfp4_block_scales({from.data(), 1, kValues}, global, scales);
  kWide.nvfp4_search({from.data(),
                      importance.data(),
                      factors.data(),
                      factors.data(),
                      scales.data(),
                      scales.size()});
  reference::nvfp4_search_scales({from.data(), 1, kValues}, global, importance, want_scales);
  EXPECT_EQ(scales, want_scales);
}

TEST(WideBody, AddsMagnitudesAsTheReference) {
  const std::vector<float> from = values();
  const std::vector<float> columns = weights();
  std::vector<double> squares(kValues, 1);
  std::vector<double> shares(kValues, 2);
  SumLanes lanes{};
  kWide.add_magnitudes(
      {from.data(), columns.data(), kValues, squares.data(), shares.data(), lanes.data()});
  std::vector<double> want_squares(kValues, 1);
  std::vector<double> want_shares(kValues, 2);
  std::vector<double> want(1);
  reference::add_magnitudes({from.data(), 1, kValues}, columns, {want_squares, want_shares}, want);
  EXPECT_TRUE(same_bytes(squares, want_squares));
  EXPECT_TRUE(same_bytes(shares, want_shares));
  EXPECT_EQ(add_lanes(lanes), want[0]);
}

TEST(WideBody, AddsErrorsAsTheReference) {
  const std::vector<float> want = values();
  std::vector<float> got(want);
  for (float& value : got) {
    value *= 1.25F;
  }
  const std::size_t cols = kValues - 5;
  const std::vector<float> weights(cols, 0.7F);
  for (const bool is_weighted : {false, true}) {
    SumLanes errors{};
    SumLanes norms{};
    kWide.add_errors(
        {got.data(), want.data(), is_weighted ? weights.data() : nullptr, cols, &errors, &norms});
    ErrorSums sums;
    reference::add_errors({got.data(), 1, cols},
                          {want.data(), 1, cols},
                          sums,
                          is_weighted ? std::span(weights) : std::span<const float>());
    EXPECT_EQ(add_lanes(errors), sums.squared_error);
    EXPECT_EQ(add_lanes(norms), sums.squared_norm);
  }
}

}  // namespace
}  // namespace quantmill
