// Other programs' MX blocks (tests/golden/codecs) against ours. Where they agree, to the byte;
// where they do not, the disagreement is stated with its count, so that a change on our side shows.

#include <cmath>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/mx.h"
#include "tests/kernels/golden_tensors.h"
#include "tests/support/temporary_folder.h"

namespace quantmill {
namespace {

using test::golden;
using test::GoldenTensors;
using testing::UnorderedElementsAre;

constexpr Context kReference{Backend::kReference, Isa::kPlain};
constexpr auto kE2m1 = ElementFormat::kE2m1;
constexpr auto kE2m3 = ElementFormat::kE2m3;
constexpr auto kE3m2 = ElementFormat::kE3m2;
constexpr auto kE4m3 = ElementFormat::kE4m3;
constexpr auto kE5m2 = ElementFormat::kE5m2;
constexpr auto kFloor = ScaleRule::kFloor;
constexpr auto kEven = ScaleRule::kEven;
constexpr auto kRceil = ScaleRule::kRceil;
constexpr auto kCeil = ScaleRule::kCeil;

// Codes one a byte, 32 to a block; scale bytes one to a block.
struct Blocks {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
};

std::vector<std::uint8_t> unpack(const std::vector<std::uint8_t>& packed, std::size_t bits) {
  std::vector<std::uint8_t> codes;
  for (std::size_t bit = 0; bit < packed.size() * 8; bit += bits) {
    const unsigned low = packed[bit / 8];
    const unsigned high = bit / 8 + 1 < packed.size() ? packed[bit / 8 + 1] : 0U;
    codes.push_back(
        static_cast<std::uint8_t>(((high << 8 | low) >> (bit % 8)) & ((1U << bits) - 1U)));
  }
  return codes;
}

std::vector<float> inputs() {
  return GoldenTensors(golden("codecs/inputs.safetensors")).floats("mx_blocks");
}

Blocks ours(ElementFormat format, ScaleRule rule) {
  const std::vector<float> values = inputs();
  const std::size_t rows = values.size() / kMxBlock;
  std::vector<std::uint8_t> packed(rows * mx_packed_bytes(format, kMxBlock));
  Blocks blocks{{}, std::vector<std::uint8_t>(rows)};
  mx_quantize(kReference, {format, rule}, {values.data(), rows, kMxBlock}, packed, blocks.scales);
  blocks.codes = unpack(packed, element_bits(format));
  return blocks;
}

// How many of the 386 scale bytes, and of the codes in blocks whose scale bytes agree, differ from
// ours.
struct Differences {
  int scales = 0;       // scale bytes
  int scales_zero = 0;  // … of blocks of zeros
  int scales_low = 0;   // … of blocks whose byte is 0 or 1 by ours
  int codes = 0;        // codes in blocks with the same scale byte
  int codes_sign = 0;   // … that are zeros of the other sign
  int codes_low = 0;    // … that are other values, in blocks whose byte is 0 or 1
  int codes_tie = 0;    // … that are other values, from exact ties of e2m1

  friend bool operator==(const Differences&, const Differences&) = default;
};

std::ostream& operator<<(std::ostream& out, const Differences& d) {
  return out << "{" << d.scales << ", " << d.scales_zero << ", " << d.scales_low << ", " << d.codes
             << ", " << d.codes_sign << ", " << d.codes_low << ", " << d.codes_tie << "}";
}

// Whether |value| / scale lies midway between two e2m1 values.
bool is_e2m1_tie(float value, std::uint8_t scale) {
  const float scaled = std::fabs(value) * decode_e8m0_reciprocal(scale);
  for (const float tie : {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F}) {
    if (scaled == tie) {
      return true;
    }
  }
  return false;
}

Differences compare(const Blocks& maker, const Blocks& our, ElementFormat format) {
  const std::vector<float> values = inputs();
  const unsigned magnitude = (1U << (element_bits(format) - 1)) - 1U;
  Differences result;
  EXPECT_EQ(maker.codes.size(), our.codes.size());
  EXPECT_EQ(maker.scales.size(), our.scales.size());
  for (std::size_t block = 0; block < our.scales.size(); ++block) {
    const bool is_low = our.scales[block] < 2;
    const std::size_t begin = block * kMxBlock;
    if (maker.scales.at(block) != our.scales[block]) {
      bool is_zero = true;
      for (std::size_t i = begin; i < begin + kMxBlock; ++i) {
        is_zero = is_zero && values[i] == 0;
      }
      ++result.scales;
      result.scales_zero += is_zero ? 1 : 0;
      result.scales_low += is_low ? 1 : 0;
      continue;
    }
    for (std::size_t i = begin; i < begin + kMxBlock; ++i) {
      if (maker.codes.at(i) == our.codes[i]) {
        continue;
      }
      ++result.codes;
      if (((maker.codes[i] | our.codes[i]) & magnitude) == 0) {
        ++result.codes_sign;
      } else {
        const bool is_tie = format == kE2m1 && is_e2m1_tie(values[i], our.scales[block]);
        result.codes_low += is_low ? 1 : 0;
        result.codes_tie += is_tie ? 1 : 0;
      }
    }
  }
  return result;
}

struct Case {
  const char* file;  // in tests/golden/codecs
  std::string codes;
  std::string scales;
  ElementFormat format;
  ScaleRule rule;
  std::size_t bits;  // of a stored code
  Differences expected;
};

Case quark(const char* file,
           const std::string& name,
           ElementFormat format,
           ScaleRule rule,
           Differences expected) {
  return {
      file, name + ".weight", name + ".weight_scale", format, rule, element_bits(format), expected};
}

Case torchao(const std::string& name,
             ElementFormat format,
             ScaleRule rule,
             int codes_low,
             int codes_tie = 0) {
  return {"mx_torchao",
          name + ".data",
          name + ".scale",
          format,
          rule,
          format == kE2m1 ? 4U : 8U,
          {3, 3, 0, codes_low, 0, codes_low, codes_tie}};
}

// Why they differ: Quark never writes the sign of a zero, and never scale byte 0; its floor and
// ceil take log2 in the tensor's dtype, so that on BF16 7.96875 counts as 8. torchao divides by
// 2^-126 (rceil: by 1) where the byte is 0. compressed-tensors takes the sign of a -0 input away,
// writes 127 where amax >= 1.75 * 2^127, and bumps MXFP8 as FP4. Triton rounds ties away from zero,
// and its ROUND_DOWN is floor(log2(amax / 6)). Zero blocks have any byte.
const Case kCases[] = {
    quark("mxfp4_quark", "even.bf16_input", kE2m1, kEven, {39, 3, 28, 1144, 1144, 0, 0}),
    quark("mxfp4_quark", "even.f32_input", kE2m1, kEven, {39, 3, 28, 1144, 1144, 0, 0}),
    quark("mxfp4_quark", "floor.bf16_input", kE2m1, kFloor, {76, 3, 40, 1026, 1026, 0, 0}),
    quark("mxfp4_quark", "floor.f32_input", kE2m1, kFloor, {37, 3, 34, 1075, 1075, 0, 0}),
    quark("mxfp4_quark", "ceil.bf16_input", kE2m1, kCeil, {34, 3, 23, 1568, 1538, 30, 0}),
    quark("mxfp4_quark", "ceil.f32_input", kE2m1, kCeil, {26, 3, 23, 1574, 1574, 0, 0}),
    quark("mxfp6_quark", "e2m3.even.bf16_input", kE2m3, kEven, {39, 3, 31, 538, 538, 0, 0}),
    quark("mxfp6_quark", "e2m3.even.f32_input", kE2m3, kEven, {39, 3, 31, 538, 538, 0, 0}),
    quark("mxfp6_quark", "e2m3.floor.bf16_input", kE2m3, kFloor, {76, 3, 40, 519, 519, 0, 0}),
    quark("mxfp6_quark", "e2m3.floor.f32_input", kE2m3, kFloor, {37, 3, 34, 541, 541, 0, 0}),
    quark("mxfp6_quark", "e2m3.ceil.bf16_input", kE2m3, kCeil, {34, 3, 23, 711, 680, 31, 0}),
    quark("mxfp6_quark", "e2m3.ceil.f32_input", kE2m3, kCeil, {26, 3, 23, 695, 695, 0, 0}),
    quark("mxfp6_quark", "e3m2.even.bf16_input", kE3m2, kEven, {54, 3, 45, 262, 262, 0, 0}),
    quark("mxfp6_quark", "e3m2.even.f32_input", kE3m2, kEven, {54, 3, 45, 262, 262, 0, 0}),
    quark("mxfp6_quark", "e3m2.floor.bf16_input", kE3m2, kFloor, {81, 3, 45, 259, 259, 0, 0}),
    quark("mxfp6_quark", "e3m2.floor.f32_input", kE3m2, kFloor, {48, 3, 45, 272, 272, 0, 0}),
    quark("mxfp6_quark", "e3m2.ceil.bf16_input", kE3m2, kCeil, {55, 3, 45, 327, 327, 0, 0}),
    quark("mxfp6_quark", "e3m2.ceil.f32_input", kE3m2, kCeil, {48, 3, 45, 330, 330, 0, 0}),
    quark("mxfp4_quark_triton_reference", "EVEN", kE2m1, kEven, {11, 3, 0, 402, 0, 16, 402}),
    quark("mxfp4_quark_triton_reference", "ROUND_UP", kE2m1, kRceil, {29, 3, 26, 385, 0, 4, 385}),
    quark(
        "mxfp4_quark_triton_reference", "ROUND_DOWN", kE2m1, kFloor, {179, 3, 3, 932, 0, 801, 151}),
    {"mxfp4_compressed_tensors",
     "bf16_input.weight_packed",
     "bf16_input.weight_scale",
     kE2m1,
     kEven,
     4,
     {11, 3, 0, 68, 68, 0, 0}},
    {"mxfp4_compressed_tensors",
     "f32_input.weight_packed",
     "f32_input.weight_scale",
     kE2m1,
     kEven,
     4,
     {11, 3, 0, 68, 68, 0, 0}},
    {"mxfp8_compressed_tensors",
     "e4m3.weight",
     "e4m3.weight_scale",
     kE4m3,
     kEven,
     8,
     {54, 3, 0, 0, 0, 0, 0}},
    {"mxfp8_vllm", "weight", "weight_scale", kE4m3, kRceil, 8, {3, 3, 0, 0, 0, 0, 0}},
    torchao("e2m1.floor", kE2m1, kFloor, 675, 15),
    torchao("e2m1.even", kE2m1, kEven, 512, 12),
    torchao("e2m1.rceil", kE2m1, kRceil, 560, 12),
    torchao("e2m1.ceil", kE2m1, kCeil, 375, 12),
    torchao("e2m3.floor", kE2m3, kFloor, 895),
    torchao("e2m3.even", kE2m3, kEven, 803),
    torchao("e2m3.rceil", kE2m3, kRceil, 824),
    torchao("e2m3.ceil", kE2m3, kCeil, 553),
    torchao("e3m2.floor", kE3m2, kFloor, 1277),
    torchao("e3m2.even", kE3m2, kEven, 1277),
    torchao("e3m2.rceil", kE3m2, kRceil, 1306),
    torchao("e3m2.ceil", kE3m2, kCeil, 1277),
    torchao("e4m3.floor", kE4m3, kFloor, 1491),
    torchao("e4m3.even", kE4m3, kEven, 1491),
    torchao("e4m3.rceil", kE4m3, kRceil, 1491),
    torchao("e4m3.ceil", kE4m3, kCeil, 1491),
    torchao("e5m2.floor", kE5m2, kFloor, 1491),
    torchao("e5m2.even", kE5m2, kEven, 1491),
    torchao("e5m2.rceil", kE5m2, kRceil, 1491),
    torchao("e5m2.ceil", kE5m2, kCeil, 1491),
};

Blocks read_blocks(const Case& from) {
  const GoldenTensors file(golden(std::string("codecs/") + from.file + ".safetensors"));
  return {unpack(file.bytes(from.codes), from.bits), file.bytes(from.scales)};
}

class Makers : public testing::TestWithParam<Case> {};

TEST_P(Makers, DifferAsStatedAndNowhereElse) {
  const Case& maker = GetParam();
  EXPECT_EQ(compare(read_blocks(maker), ours(maker.format, maker.rule), maker.format),
            maker.expected);
}

INSTANTIATE_TEST_SUITE_P(Codecs, Makers, testing::ValuesIn(kCases), [](const auto& test) {
  std::string name = std::string(test.param.file) + "_" + test.param.codes;
  for (char& c : name) {
    c = c == '.' ? '_' : c;
  }
  return name;
});

// (our byte, the maker's byte) of the blocks whose scale bytes differ, with counts.
std::map<std::pair<int, int>, int> scale_pairs(const Case& maker) {
  const Blocks theirs = read_blocks(maker);
  const Blocks our = ours(maker.format, maker.rule);
  std::map<std::pair<int, int>, int> pairs;
  for (std::size_t block = 0; block < our.scales.size(); ++block) {
    if (our.scales[block] != theirs.scales.at(block)) {
      ++pairs[{our.scales[block], theirs.scales[block]}];
    }
  }
  return pairs;
}

using Pair = std::pair<const std::pair<int, int>, int>;

TEST(MakersScales, QuarkEvenWritesOneForZeroAndBumpsTheLargestTwice) {
  EXPECT_THAT(scale_pairs(quark("mxfp4_quark", "even.f32_input", kE2m1, kEven, {})),
              UnorderedElementsAre(Pair{{0, 1}, 28}, Pair{{127, 1}, 3}, Pair{{253, 254}, 8}));
}

TEST(MakersScales, TritonEvenBumpsTheLargestTwiceToo) {
  EXPECT_THAT(scale_pairs(quark("mxfp4_quark_triton_reference", "EVEN", kE2m1, kEven, {})),
              UnorderedElementsAre(Pair{{127, 0}, 3}, Pair{{253, 254}, 8}));
}

TEST(MakersScales, CompressedTensorsWrites127ForTheLargest) {
  const Case& maker = kCases[21];
  ASSERT_STREQ(maker.file, "mxfp4_compressed_tensors");
  EXPECT_THAT(scale_pairs(maker), UnorderedElementsAre(Pair{{127, 0}, 3}, Pair{{253, 127}, 8}));
}

TEST(MakersScales, VllmMxfp8IsRceilAndNotFloor) {
  const Case as_floor{"mxfp8_vllm", "weight", "weight_scale", kE4m3, kFloor, 8, {}};
  EXPECT_EQ(compare(read_blocks(as_floor), ours(kE4m3, kFloor), kE4m3).scales, 70);
}

// Dequantized, Quark's even and ours are the same numbers wherever the scale bytes are the same.
TEST(MakersValues, QuarkEvenStandsForTheSameValues) {
  const std::pair<const char*, ElementFormat> files[] = {
      {"even.f32_input", kE2m1}, {"e2m3.even.f32_input", kE2m3}, {"e3m2.even.f32_input", kE3m2}};
  for (const auto& [name, format] : files) {
    const char* file = format == kE2m1 ? "mxfp4_quark" : "mxfp6_quark";
    const std::vector<float> want =
        GoldenTensors(golden(std::string("codecs/") + file + ".safetensors"))
            .floats(std::string(name) + ".dequantized");
    const Blocks theirs = read_blocks(quark(file, name, format, kEven, {}));
    const Blocks our = ours(format, kEven);
    int num_compared = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (theirs.scales[i / kMxBlock] != our.scales[i / kMxBlock]) {
        continue;
      }
      const float got =
          decode_element(format, our.codes[i]) * decode_e8m0(our.scales[i / kMxBlock]);
      ASSERT_EQ(got, want[i]) << name << " element " << i;
      ++num_compared;
    }
    EXPECT_EQ(num_compared, 32 * (386 - (format == kE3m2 ? 54 : 39))) << name;
  }
}

// The observer that takes the better of ceil and one less.
TEST(MakersScales, QuarkDiffsObserverIsCeilOrOneLess) {
  const std::vector<std::uint8_t> scales =
      GoldenTensors(golden("codecs/mxfp4_quark_diffs.safetensors")).bytes("weight_scale");
  const Blocks ceil = ours(kE2m1, kCeil);
  const Blocks floor = ours(kE2m1, kFloor);
  int equal_to_ceil = 0;
  int equal_to_floor = 0;
  for (std::size_t block = 0; block < scales.size(); ++block) {
    equal_to_ceil += scales[block] == ceil.scales[block] ? 1 : 0;
    equal_to_floor += scales[block] == floor.scales[block] ? 1 : 0;
  }
  EXPECT_EQ(equal_to_ceil, 124);
  EXPECT_EQ(equal_to_floor, 257);
}

}  // namespace
}  // namespace quantmill
