// The cpu backend of kernels/nvfp4.h.

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "kernels/backends.h"
#include "kernels/cpu/entries.h"

namespace quantmill::cpu {
namespace {

using Factors = std::array<float, 256>;

// nvfp4_factor of every scale byte.
Factors factors_of(GlobalScale global) {
  Factors factors{};
  for (std::size_t byte = 0; byte < factors.size(); ++byte) {
    factors[byte] = nvfp4_factor(static_cast<std::uint8_t>(byte), global);
  }
  return factors;
}

// What divides by those factors: dividing by infinity gives the zeros that a factor of 0 stands
// for.
Factors divisors_of(GlobalScale global) {
  Factors divisors = factors_of(global);
  std::replace(divisors.begin(), divisors.end(), 0.0F, std::numeric_limits<float>::infinity());
  return divisors;
}

// The last block of an odd number has no partner.
struct Split {
  std::size_t num_pairs;
  std::size_t num_paired;  // blocks

  explicit Split(std::size_t num_blocks)
      : num_pairs(num_blocks / 2), num_paired(num_blocks / 2 * 2) {}
};

}  // namespace

void nvfp4_block_scales(Isa isa,
                        ConstFloatMatrix values,
                        GlobalScale global,
                        std::span<std::uint8_t> scales) {
  const std::size_t num_blocks = values.cols / kNvfp4Block;
  std::vector<float> sixths(num_blocks);
  const bool multiplies = global.use == GlobalScaleUse::kMultiplies;
  const float divisor = multiplies ? global.value : 1;
  const float factor = multiplies ? 1 : global.value;
  for (std::size_t r = 0; r < values.rows; ++r) {
    std::fill(sixths.begin(), sixths.end(), 0.0F);
    entries(isa).amax({values.row(r).data(), sixths.data(), values.cols, kNvfp4Block});
    for (float& sixth : sixths) {
      sixth = sixth / 6 * factor;
    }
    std::uint8_t* row = scales.data() + r * num_blocks;
    entries(isa).fp8_encode({sixths.data(), &divisor, row, num_blocks, num_blocks});
    for (std::size_t b = 0; b < num_blocks; ++b) {
      row[b] = std::max<std::uint8_t>(row[b], 1);
    }
  }
}

void nvfp4_search_scales(Isa isa,
                         ConstFloatMatrix values,
                         GlobalScale global,
                         std::span<const float> importance,
                         std::span<std::uint8_t> scales) {
  nvfp4_block_scales(isa, values, global, scales);
  const Factors factors = factors_of(global);
  const Factors divisors = divisors_of(global);
  const std::vector<float> ones(importance.empty() ? values.cols : 0, 1.0F);
  const std::size_t num_blocks = values.cols / kNvfp4Block;
  for (std::size_t r = 0; r < values.rows; ++r) {
    entries(isa).nvfp4_search({values.row(r).data(),
                               importance.empty() ? ones.data() : importance.data(),
                               divisors.data(),
                               factors.data(),
                               scales.data() + r * num_blocks,
                               num_blocks});
  }
}

void nvfp4_quantize(Isa isa,
                    ConstFloatMatrix values,
                    std::span<const std::uint8_t> scales,
                    GlobalScale global,
                    std::span<std::uint8_t> packed) {
  const Factors divisors = divisors_of(global);
  const Split split(scales.size());
  entries(isa).nvfp4_quantize(
      {values.data, scales.data(), divisors.data(), packed.data(), split.num_pairs});
  const std::size_t done = split.num_paired * kNvfp4Block;
  const std::size_t left = scales.size() * kNvfp4Block - done;
  reference::nvfp4_quantize({values.data + done, left / kNvfp4Block, kNvfp4Block},
                            scales.subspan(split.num_paired),
                            global,
                            packed.subspan(done / 2));
}

std::optional<MatrixPosition> nvfp4_dequantize(Isa isa,
                                               std::span<const std::uint8_t> packed,
                                               std::span<const std::uint8_t> scales,
                                               GlobalScale global,
                                               FloatMatrix values) {
  const Factors factors = factors_of(global);
  const Split split(scales.size());
  const std::size_t done = split.num_paired * kNvfp4Block;
  const std::size_t left = scales.size() * kNvfp4Block - done;
  const bool is_finite = entries(isa).nvfp4_dequantize(
      {packed.data(), scales.data(), factors.data(), values.data, split.num_pairs});
  const FloatMatrix rest{values.data + done, left / kNvfp4Block, kNvfp4Block};
  if (is_finite && !reference::nvfp4_dequantize(
                       packed.subspan(done / 2), scales.subspan(split.num_paired), global, rest)) {
    return std::nullopt;
  }
  // Where something is not finite, the reference finds the place.
  return reference::nvfp4_dequantize(packed, scales, global, values);
}

}  // namespace quantmill::cpu
