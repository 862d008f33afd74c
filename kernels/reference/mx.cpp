#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/backends.h"
#include "kernels/codec.h"
#include "kernels/lane_sums.h"

namespace quantmill::reference {
namespace {

using BlockCodes = std::array<std::uint8_t, kMxBlock>;

using BlockFloats = std::array<float, kMxBlock>;
using Squares = std::array<float, kSumLanes>;

// A block on its way to codes.
struct Block {
  BlockFloats values{};
  BlockFloats importance{};
};

BlockCodes encode_block(const MxSpec& spec, const Block& block, std::uint8_t scale) {
  const float reciprocal = decode_e8m0_reciprocal(scale);
  BlockCodes codes{};
  for (std::size_t i = 0; i < kMxBlock; ++i) {
    codes[i] = encode_element(spec.element, block.values[i] * reciprocal, spec.ties);
  }
  return codes;
}

// p_j of mx.h.
Squares squared_errors(const MxSpec& spec, const Block& block, std::uint8_t scale) {
  const BlockCodes codes = encode_block(spec, block, scale);
  BlockFloats squares{};
  for (std::size_t i = 0; i < kMxBlock; ++i) {
    const float got = decode_element(spec.element, codes[i]) * decode_e8m0(scale);
    const float error = (got - block.values[i]) * block.importance[i];
    squares[i] = error * error;
  }
  Squares sums{};
  for (std::size_t j = 0; j < kSumLanes; ++j) {
    sums[j] = squares[j] + squares[j + kSumLanes];
  }
  return sums;
}

std::uint32_t amax_bits_of(const BlockFloats& values) {
  std::uint32_t amax_bits = 0;
  for (const float value : values) {
    amax_bits = std::max(amax_bits, float_bits(value) & 0x7fffffffU);
  }
  return amax_bits;
}

std::uint8_t choose_scale(const MxSpec& spec, const Block& block) {
  const std::uint32_t amax_bits = amax_bits_of(block.values);
  const std::uint8_t first = mx_scale_byte(spec.scale_rule, spec.element, amax_bits);
  if (spec.scale_rule != ScaleRule::kMse || amax_bits == 0) {
    return first;
  }
  std::uint8_t best = first;
  float least = add_lanes(squared_errors(spec, block, first));
  for (const int offset : kMxTriedExponents) {
    const auto scale = static_cast<std::uint8_t>(std::max(0, first + offset));
    const float error = add_lanes(squared_errors(spec, block, scale));
    if (error < least) {
      least = error;
      best = scale;
    }
  }
  return best;
}

// Of mx_error_curve, in float: in units of the scale's square.
float error_in_steps(const MxSpec& spec, const Block& block, std::uint8_t scale) {
  const BlockCodes codes = encode_block(spec, block, scale);
  const float reciprocal = decode_e8m0_reciprocal(scale);
  std::array<float, 4> parts{};
  for (std::size_t i = 0; i < kMxBlock; ++i) {
    const float step = decode_element(spec.element, codes[i]) - block.values[i] * reciprocal;
    const float error = step * block.importance[i];
    parts[i % parts.size()] += error * error;
  }
  return (parts[0] + parts[2]) + (parts[1] + parts[3]);
}

// Of mx_error_curve: a block's error with the scale that it gets.
double scaled_error(const MxSpec& spec, const Block& block) {
  const std::uint32_t amax_bits = amax_bits_of(block.values);
  const std::uint8_t first = mx_scale_byte(spec.scale_rule, spec.element, amax_bits);
  std::uint8_t best = first;
  float error = error_in_steps(spec, block, first);
  if (spec.scale_rule == ScaleRule::kMse && amax_bits != 0) {
    float least = error;
    for (const int offset : kMxTriedExponents) {
      const auto scale = static_cast<std::uint8_t>(std::max(0, first + offset));
      const float tried = error_in_steps(spec, block, scale);
      const float in_first_steps = std::ldexp(tried, 2 * (scale - first));
      if (in_first_steps < least) {
        least = in_first_steps;
        best = scale;
        error = tried;
      }
    }
  }
  const double scale = decode_e8m0(best);
  return error * scale * scale;
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
                 std::span<std::uint8_t> scales,
                 std::span<const float> importance) {
  const std::size_t block_bytes = mx_packed_bytes(spec.element, kMxBlock);
  Block block;
  block.importance.fill(1);
  for (std::size_t index = 0; index < scales.size(); ++index) {
    std::copy_n(values.data + index * kMxBlock, kMxBlock, block.values.begin());
    if (!importance.empty()) {
      const std::size_t column = index * kMxBlock % values.cols;
      std::ranges::copy(importance.subspan(column, kMxBlock), block.importance.begin());
    }
    scales[index] = choose_scale(spec, block);
    pack_block(spec.element,
               encode_block(spec, block, scales[index]),
               packed.subspan(index * block_bytes, block_bytes));
  }
}

void mx_encode(ElementFormat element,
               ConstFloatMatrix values,
               std::span<const std::uint8_t> scales,
               std::span<std::uint8_t> packed) {
  const std::size_t block_bytes = mx_packed_bytes(element, kMxBlock);
  Block block;
  for (std::size_t index = 0; index < scales.size(); ++index) {
    std::copy_n(values.data + index * kMxBlock, kMxBlock, block.values.begin());
    pack_block(element,
               encode_block({.element = element}, block, scales[index]),
               packed.subspan(index * block_bytes, block_bytes));
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
                    std::span<double> sums,
                    std::span<const double> row_weights) {
  for (std::size_t candidate = 0; candidate < candidates.rows; ++candidate) {
    const std::span<const float> s = candidates.row(candidate);
    for (std::size_t begin = 0; begin < values.cols; begin += kMxBlock) {
      double& sum = sums[begin / kMxBlock * candidates.rows + candidate];
      for (std::size_t first = 0; first < values.rows; first += kMxCurveRows) {
        SumLanes lanes{};
        for (std::size_t r = first; r < std::min(values.rows, first + kMxCurveRows); ++r) {
          Block block;
          for (std::size_t i = 0; i < kMxBlock; ++i) {
            block.values[i] = values.row(r)[begin + i] * s[begin + i];
            block.importance[i] = importance[begin + i] * (1.0F / s[begin + i]);
          }
          lanes[r - first] = scaled_error(spec, block) * (row_weights.empty() ? 1 : row_weights[r]);
        }
        sum += add_lanes(lanes);
      }
    }
  }
}

}  // namespace quantmill::reference
