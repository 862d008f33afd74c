#include <algorithm>
#include <array>

#include "kernels/backends.h"
#include "kernels/codec.h"
#include "kernels/lane_sums.h"

namespace quantmill::reference {
namespace {

using BlockCodes = std::array<std::uint8_t, kMxBlock>;

// Encodes one block and returns its scale byte.
std::uint8_t encode_block(const MxSpec& spec, std::span<const float> values, BlockCodes& codes) {
  std::uint32_t amax_bits = 0;
  for (const float value : values) {
    amax_bits = std::max(amax_bits, float_bits(value) & 0x7fffffffU);
  }
  const std::uint8_t scale = mx_scale_byte(spec.scale_rule, spec.element, amax_bits);
  const float reciprocal = decode_e8m0_reciprocal(scale);
  for (std::size_t i = 0; i < kMxBlock; ++i) {
    codes[i] = encode_element(spec.element, values[i] * reciprocal, spec.ties);
  }
  return scale;
}

void pack_block(ElementFormat element, const BlockCodes& codes, std::span<std::uint8_t> packed) {
  const std::size_t bits = element_bits(element);
  std::uint32_t buffer = 0;
  std::size_t num_bits = 0;
  std::size_t next = 0;
  for (const std::uint8_t code : codes) {
    buffer |= static_cast<std::uint32_t>(code) << num_bits;
    for (num_bits += bits; num_bits >= 8; num_bits -= 8) {
      packed[next++] = static_cast<std::uint8_t>(buffer);
      buffer >>= 8;
    }
  }
}

BlockCodes unpack_block(ElementFormat element, std::span<const std::uint8_t> packed) {
  const std::size_t bits = element_bits(element);
  BlockCodes codes{};
  std::uint32_t buffer = 0;
  std::size_t num_bits = 0;
  std::size_t next = 0;
  for (std::uint8_t& code : codes) {
    for (; num_bits < bits; num_bits += 8) {
      buffer |= static_cast<std::uint32_t>(packed[next++]) << num_bits;
    }
    code = static_cast<std::uint8_t>(buffer & ((1U << bits) - 1U));
    buffer >>= bits;
    num_bits -= bits;
  }
  return codes;
}

}  // namespace

void mx_quantize(const MxSpec& spec,
                 ConstFloatMatrix values,
                 std::span<std::uint8_t> packed,
                 std::span<std::uint8_t> scales) {
  const std::span<const float> all(values.data, values.rows * values.cols);
  const std::size_t block_bytes = mx_packed_bytes(spec.element, kMxBlock);
  for (std::size_t block = 0; block < scales.size(); ++block) {
    BlockCodes codes{};
    scales[block] = encode_block(spec, all.subspan(block * kMxBlock, kMxBlock), codes);
    pack_block(spec.element, codes, packed.subspan(block * block_bytes, block_bytes));
  }
}

void mx_dequantize(ElementFormat element,
                   std::span<const std::uint8_t> packed,
                   std::span<const std::uint8_t> scales,
                   FloatMatrix values) {
  const std::size_t block_bytes = mx_packed_bytes(element, kMxBlock);
  for (std::size_t block = 0; block < scales.size(); ++block) {
    const BlockCodes codes =
        unpack_block(element, packed.subspan(block * block_bytes, block_bytes));
    const float scale = decode_e8m0(scales[block]);
    for (std::size_t i = 0; i < kMxBlock; ++i) {
      values.data[block * kMxBlock + i] = decode_element(element, codes[i]) * scale;
    }
  }
}

void mx_error_curve(const MxSpec& spec,
                    ConstFloatMatrix values,
                    std::span<const float> importance,
                    ConstFloatMatrix candidates,
                    std::span<double> sums) {
  for (std::size_t candidate = 0; candidate < sums.size(); ++candidate) {
    const std::span<const float> s = candidates.row(candidate);
    for (std::size_t r = 0; r < values.rows; ++r) {
      const std::span<const float> row = values.row(r);
      SumLanes lanes{};
      for (std::size_t begin = 0; begin < values.cols; begin += kMxBlock) {
        std::array<float, kMxBlock> scaled{};
        for (std::size_t i = 0; i < kMxBlock; ++i) {
          scaled[i] = row[begin + i] * s[begin + i];
        }
        BlockCodes codes{};
        const float scale = decode_e8m0(encode_block(spec, scaled, codes));
        std::array<float, kMxBlock> squares{};
        for (std::size_t i = 0; i < kMxBlock; ++i) {
          const float inverse = 1.0F / s[begin + i];
          const float got = decode_element(spec.element, codes[i]) * scale * inverse;
          const float error = (got - row[begin + i]) * importance[begin + i];
          squares[i] = error * error;
        }
        for (std::size_t j = 0; j < kSumLanes; ++j) {
          lanes[j] += static_cast<double>(squares[j] + squares[j + kSumLanes]);
        }
      }
      sums[candidate] += add_lanes(lanes);
    }
  }
}

}  // namespace quantmill::reference
