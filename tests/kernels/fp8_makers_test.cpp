// Other programs' FP8 weights (tests/golden/codecs) against ours. Where they agree, to the byte;
// where they do not, the disagreement is stated with its count, so that a change on our side shows.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codec.h"
#include "kernels/fp8.h"
#include "tests/kernels/golden_tensors.h"
#include "tests/support/temporary_folder.h"

namespace quantmill {
namespace {

using test::golden;
using test::GoldenTensors;

constexpr Context kReference{Backend::kReference, Isa::kPlain};
constexpr BlockGrid kTiles{.rows = 128, .cols = 128};

struct Fp8 {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

struct Input {
  std::vector<float> values;
  std::size_t rows;
  std::size_t cols;

  explicit Input(const std::string& name)
      : values(GoldenTensors(golden("codecs/inputs.safetensors")).floats(name)),
        rows(GoldenTensors(golden("codecs/inputs.safetensors")).shape(name).at(0)),
        cols(values.size() / rows) {}

  [[nodiscard]] ConstFloatMatrix view() const { return {values.data(), rows, cols}; }
};

std::vector<std::uint8_t> quantize(const Input& input,
                                   const BlockGrid& grid,
                                   const std::vector<float>& scales) {
  std::vector<std::uint8_t> codes(input.values.size());
  const std::size_t num_cols = num_block_cols(grid, input.cols);
  fp8_quantize(
      kReference, input.view(), {scales.data(), scales.size() / num_cols, num_cols}, grid, codes);
  return codes;
}

Fp8 ours(const Input& input, const BlockGrid& grid, DType stored) {
  const std::size_t num_rows = num_block_rows(grid, input.rows);
  const std::size_t num_cols = num_block_cols(grid, input.cols);
  Fp8 result{{}, std::vector<float>(num_rows * num_cols)};
  block_amax(kReference, input.view(), grid, {result.scales.data(), num_rows, num_cols});
  for (float& scale : result.scales) {
    scale = fp8_scale(scale, stored);
  }
  result.codes = quantize(input, grid, result.scales);
  return result;
}

template <typename T>
std::size_t num_different(const std::vector<T>& a, const std::vector<T>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    count += a[i] == b.at(i) ? 0U : 1U;
  }
  return count;
}

// It quantizes with 448 / amax and stores the reciprocal of that, rounded once more.
TEST(MakersFp8, TransformersDiffersByOneUlpAndOneCode) {
  const Input input("fp8_matrix");
  const GoldenTensors file(golden("codecs/fp8_block_transformers.safetensors"));
  const Fp8 our = ours(input, kTiles, DType::kF32);
  const std::vector<float> scales = file.floats("fp8_matrix.float32.weight_scale_inv");
  EXPECT_EQ(num_different(scales, our.scales), 2U);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const auto apart = static_cast<int>(float_bits(scales[i]) - float_bits(our.scales.at(i)));
    EXPECT_LE(std::abs(apart), 1) << "tile " << i;
  }
  EXPECT_EQ(our.scales.at(2), 1.0F);  // of zeros
  EXPECT_EQ(num_different(file.bytes("fp8_matrix.float32.weight"), our.codes), 1U);
}

// With a power of two as scale, division is exact and every code is the same.
TEST(MakersFp8, TransformersWithPowersOfTwoAgrees) {
  const Input input("fp8_matrix");
  const GoldenTensors file(golden("codecs/fp8_block_transformers.safetensors"));
  std::vector<float> scales;
  for (const std::uint8_t byte : file.bytes("fp8_matrix.ue8m0.weight_scale_inv")) {
    scales.push_back(decode_e8m0(byte));
  }
  EXPECT_EQ(num_different(file.bytes("fp8_matrix.ue8m0.weight"), quantize(input, kTiles, scales)),
            0U);
}

// It takes amax for at least 1e-4, which makes tiles of small values and of zeros differ. That it
// multiplies by the reciprocal of the scale changes none of these codes.
TEST(MakersFp8, VllmDiffersBelow1em4Only) {
  for (const char* name : {"fp8_matrix", "fp8_ragged"}) {
    const Input input(name);
    std::vector<float> amax(6);
    block_amax(kReference, input.view(), kTiles, {amax.data(), 2, 3});
    std::vector<float> floored;
    for (const float largest : amax) {
      floored.push_back(fp8_scale(std::max(largest, 1e-4F), DType::kF32));
    }
    const GoldenTensors file(golden("codecs/fp8_block_vllm.safetensors"));
    EXPECT_EQ(file.floats(std::string(name) + ".float32.weight_scale_inv"), floored) << name;
  }
  const Input ragged("fp8_ragged");
  const GoldenTensors file(golden("codecs/fp8_block_vllm.safetensors"));
  const Fp8 our = ours(ragged, kTiles, DType::kF32);
  EXPECT_EQ(num_different(file.floats("fp8_ragged.float32.weight_scale_inv"), our.scales), 0U);
  EXPECT_EQ(num_different(file.bytes("fp8_ragged.float32.weight"), our.codes), 0U);
}

// What compressed-tensors makes of a BF16 weight: the quotient is rounded to BF16 before it becomes
// a code.
std::vector<std::uint8_t> quantize_in_bf16(const Input& input,
                                           const BlockGrid& grid,
                                           const std::vector<float>& scales) {
  std::vector<std::uint8_t> codes;
  const std::size_t num_cols = num_block_cols(grid, input.cols);
  for (std::size_t i = 0; i < input.values.size(); ++i) {
    const std::size_t row = i / input.cols / grid.rows;
    const float scale = scales.at(row * num_cols + i % input.cols / grid.cols);
    codes.push_back(encode_element(ElementFormat::kE4m3,
                                   bf16_to_float(float_to_bf16(input.values[i] / scale))));
  }
  return codes;
}

// Its scales are of the weight's dtype, and a tile of zeros has 2^-7, the eps of BF16. Because it
// divides in BF16, a quotient near a tie can become one: 2 % of the codes are the other neighbour.
TEST(MakersFp8, CompressedTensorsDiffersInZeroTilesAndBf16Quotients) {
  const Input input("fp8_matrix");
  const GoldenTensors tiles(golden("codecs/fp8_block_compressed_tensors.safetensors"));
  const Fp8 our = ours(input, kTiles, DType::kBf16);
  std::vector<float> scales = tiles.floats("weight_scale");
  EXPECT_EQ(scales.at(2), 0x1p-7F);
  scales[2] = 1;
  EXPECT_EQ(num_different(scales, our.scales), 0U);
  EXPECT_EQ(num_different(tiles.bytes("weight"), our.codes), 2024U);
  EXPECT_EQ(num_different(tiles.bytes("weight"), quantize_in_bf16(input, kTiles, scales)), 0U);

  const BlockGrid rows{.rows = 1, .cols = input.cols};
  const GoldenTensors channels(golden("codecs/fp8_channel_compressed_tensors.safetensors"));
  const Fp8 per_row = ours(input, rows, DType::kBf16);
  EXPECT_EQ(num_different(channels.floats("weight_scale"), per_row.scales), 0U);
  EXPECT_EQ(num_different(channels.bytes("weight"), per_row.codes), 1864U);
  EXPECT_EQ(num_different(channels.bytes("weight"), quantize_in_bf16(input, rows, per_row.scales)),
            0U);
}

}  // namespace
}  // namespace quantmill
