// Other programs' NVFP4 weights (tests/golden/codecs) against ours. Where they agree, to the byte;
// where they do not, the disagreement is stated with its count, so that a change on our side shows.

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codec_float.h"
#include "kernels/nvfp4.h"
#include "tests/kernels/golden_tensors.h"
#include "tests/support/temporary_folder.h"

namespace quantmill {
namespace {

using test::golden;
using test::GoldenTensors;

constexpr Context kReference{Backend::kReference, Isa::kPlain};
constexpr std::size_t kRows = 24;
constexpr std::size_t kCols = 64;

struct Nvfp4 {
  std::vector<std::uint8_t> packed;
  std::vector<std::uint8_t> scales;
};

std::vector<float> inputs() {
  return GoldenTensors(golden("codecs/inputs.safetensors")).floats("nvfp4_matrix");
}

Nvfp4 ours(GlobalScale global) {
  const std::vector<float> values = inputs();
  const ConstFloatMatrix matrix(values.data(), kRows, kCols);
  Nvfp4 result{std::vector<std::uint8_t>(kRows * kCols / 2),
               std::vector<std::uint8_t>(kRows * kCols / 16)};
  nvfp4_block_scales(kReference, matrix, global, result.scales);
  nvfp4_quantize(kReference, matrix, result.scales, global, result.packed);
  return result;
}

std::vector<float> values_of(const Nvfp4& from, GlobalScale global) {
  std::vector<float> values(kRows * kCols);
  EXPECT_EQ(
      nvfp4_dequantize(kReference, from.packed, from.scales, global, {values.data(), kRows, kCols}),
      std::nullopt);
  return values;
}

struct Differences {
  int scales = 0;       // scale bytes
  int scales_zero = 0;  // … of blocks of zeros, which the maker gives `of_zeros`
  int scales_tiny = 0;  // … of blocks whose scale rounds to 0, which the maker takes for zeros
  int codes = 0;        // codes where the scale bytes agree

  friend bool operator==(const Differences&, const Differences&) = default;
};

std::ostream& operator<<(std::ostream& out, const Differences& d) {
  return out << "{" << d.scales << ", " << d.scales_zero << ", " << d.scales_tiny << ", " << d.codes
             << "}";
}

Differences compare(const Nvfp4& maker, const Nvfp4& our, std::uint8_t of_zeros) {
  const std::vector<float> values = inputs();
  Differences result;
  for (std::size_t block = 0; block < our.scales.size(); ++block) {
    if (maker.scales.at(block) != our.scales[block]) {
      bool is_zero = true;
      for (std::size_t i = block * 16; i < block * 16 + 16; ++i) {
        is_zero = is_zero && values[i] == 0;
      }
      const bool is_smallest = our.scales[block] == 1 && maker.scales[block] == of_zeros;
      ++result.scales;
      result.scales_zero += is_smallest && is_zero ? 1 : 0;
      result.scales_tiny += is_smallest && !is_zero ? 1 : 0;
      continue;
    }
    for (std::size_t byte = block * 8; byte < block * 8 + 8; ++byte) {
      const unsigned apart = maker.packed.at(byte) ^ our.packed[byte];
      result.codes += ((apart & 0x0fU) != 0 ? 1 : 0) + ((apart & 0xf0U) != 0 ? 1 : 0);
    }
  }
  return result;
}

// Blocks of zeros have 32 (0.125, the eps of e4m3), and so have four blocks of small values, which
// become zeros that way; with byte 1 they do not.
TEST(MakersNvfp4, CompressedTensorsDiffersInZerosAndTinyBlocks) {
  const GoldenTensors file(golden("codecs/nvfp4_compressed_tensors.safetensors"));
  for (const std::string name : {"bf16_input.", "f32_input."}) {
    const GlobalScale global{file.floats(name + "weight_global_scale").at(0),
                             GlobalScaleUse::kDivides};
    const Nvfp4 maker{file.bytes(name + "weight_packed"), file.bytes(name + "weight_scale")};
    EXPECT_EQ(compare(maker, ours(global), 32), (Differences{9, 5, 4, 0})) << name;
  }
}

// Its global scale is computed in the weight's dtype.
TEST(MakersNvfp4, CompressedTensorsGlobalScaleIsOf2688) {
  const GoldenTensors file(golden("codecs/nvfp4_compressed_tensors.safetensors"));
  float amax = 0;
  for (const float value : inputs()) {
    amax = std::max(amax, std::fabs(value));
  }
  const float our = nvfp4_global_scale(amax, GlobalScaleUse::kDivides).value;
  EXPECT_EQ(file.floats("f32_input.weight_global_scale").at(0), our);
  EXPECT_EQ(file.floats("bf16_input.weight_global_scale").at(0), bf16_to_float(float_to_bf16(our)));
}

// It gives them out in BF16.
TEST(MakersNvfp4, CompressedTensorsStandsForTheSameValues) {
  const GoldenTensors file(golden("codecs/nvfp4_compressed_tensors.safetensors"));
  for (const std::string name : {"bf16_input.", "f32_input."}) {
    const GlobalScale global{file.floats(name + "weight_global_scale").at(0),
                             GlobalScaleUse::kDivides};
    const Nvfp4 maker{file.bytes(name + "weight_packed"), file.bytes(name + "weight_scale")};
    std::vector<float> values = values_of(maker, global);
    for (float& value : values) {
      value = bf16_to_float(float_to_bf16(value));
    }
    EXPECT_EQ(values, file.floats(name + "dequantized")) << name;
  }
}

// What small values become by our scales is nearer to them than zeros.
TEST(MakersNvfp4, TinyBlocksKeepTheirValues) {
  const GlobalScale global{448, GlobalScaleUse::kDivides};
  const std::vector<float> want = inputs();
  const std::vector<float> got = values_of(ours(global), global);
  double error = 0;
  double norm = 0;
  for (std::size_t i = 2 * kCols; i < 3 * kCols; ++i) {  // the row of the four blocks
    error += std::pow(got[i] - want[i], 2);
    norm += std::pow(want[i], 2);
  }
  EXPECT_GT(norm, 0);
  EXPECT_LT(error, 0.15 * norm);  // zeros: 1
}

// Blocks of zeros have 0, and so have the four of small values. It multiplies by reciprocals, which
// puts three ties below.
TEST(MakersNvfp4, VllmDiffersInZerosTinyBlocksAndThreeTies) {
  const GoldenTensors file(golden("codecs/nvfp4_vllm.safetensors"));
  const GlobalScale global{file.floats("global_scale").at(0), GlobalScaleUse::kDivides};
  const Nvfp4 maker{file.bytes("weight"), file.bytes("weight_scale")};
  EXPECT_EQ(compare(maker, ours(global), 0), (Differences{9, 5, 4, 3}));
}

TEST(MakersNvfp4, VllmStandsForTheSameValues) {
  const GoldenTensors file(golden("codecs/nvfp4_vllm.safetensors"));
  const GlobalScale global{file.floats("global_scale").at(0), GlobalScaleUse::kDivides};
  const Nvfp4 maker{file.bytes("weight"), file.bytes("weight_scale")};
  EXPECT_EQ(values_of(maker, global), file.floats("dequantized"));
}

}  // namespace
}  // namespace quantmill
