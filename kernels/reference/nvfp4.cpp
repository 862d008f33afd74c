#include "kernels/nvfp4.h"

#include <algorithm>
#include <cmath>

#include "kernels/backends.h"
#include "kernels/lane_sums.h"

namespace quantmill::reference {
namespace {

std::uint8_t code_of(float value, float factor) {
  return encode_element(ElementFormat::kE2m1, factor == 0 ? value * 0 : value / factor);
}

}  // namespace

void nvfp4_block_scales(ConstFloatMatrix values,
                        GlobalScale global,
                        std::span<std::uint8_t> scales) {
  const std::span<const float> all(values.data, values.rows * values.cols);
  for (std::size_t block = 0; block < scales.size(); ++block) {
    float amax = 0;
    for (const float value : all.subspan(block * kNvfp4Block, kNvfp4Block)) {
      amax = std::max(amax, std::fabs(value));
    }
    const float sixth = amax / 6;
    const float scale =
        global.use == GlobalScaleUse::kMultiplies ? sixth / global.value : sixth * global.value;
    scales[block] = std::max<std::uint8_t>(encode_element(ElementFormat::kE4m3, scale), 1);
  }
}

void nvfp4_search_scales(ConstFloatMatrix values,
                         GlobalScale global,
                         std::span<const float> importance,
                         std::span<std::uint8_t> scales) {
  nvfp4_block_scales(values, global, scales);
  for (std::size_t block = 0; block < scales.size(); ++block) {
    const float* const begin = values.data + block * kNvfp4Block;
    const std::size_t column = block * kNvfp4Block % values.cols;
    const auto error_of = [&](std::uint8_t scale) {
      const float factor = nvfp4_factor(scale, global);
      std::array<float, kSumLanes> squares{};
      for (std::size_t i = 0; i < kNvfp4Block; ++i) {
        const float got = decode_element(ElementFormat::kE2m1, code_of(begin[i], factor)) * factor;
        const float error = (got - begin[i]) * (importance.empty() ? 1.0F : importance[column + i]);
        squares[i] = error * error;
      }
      return add_lanes(squares);
    };
    const int first = scales[block];
    float least = error_of(scales[block]);
    for (const int step : kNvfp4TriedSteps) {
      const auto tried = static_cast<std::uint8_t>(std::clamp(first + step, 1, 0x7e));
      const float error = error_of(tried);
      if (error < least) {
        least = error;
        scales[block] = tried;
      }
    }
  }
}

void nvfp4_quantize(ConstFloatMatrix values,
                    std::span<const std::uint8_t> scales,
                    GlobalScale global,
                    std::span<std::uint8_t> packed) {
  const auto code = [&](std::size_t i) -> unsigned {
    return code_of(values.data[i], nvfp4_factor(scales[i / kNvfp4Block], global));
  };
  for (std::size_t byte = 0; byte < packed.size(); ++byte) {
    packed[byte] = static_cast<std::uint8_t>(code(2 * byte) | code(2 * byte + 1) << 4);
  }
}

std::optional<MatrixPosition> nvfp4_dequantize(std::span<const std::uint8_t> packed,
                                               std::span<const std::uint8_t> scales,
                                               GlobalScale global,
                                               FloatMatrix values) {
  std::optional<MatrixPosition> first;
  for (std::size_t i = 0; i < values.rows * values.cols; ++i) {
    const auto code = static_cast<std::uint8_t>(packed[i / 2] >> (i % 2 * 4));
    const float value =
        decode_element(ElementFormat::kE2m1, code) * nvfp4_factor(scales[i / kNvfp4Block], global);
    values.data[i] = value;
    if (!first && !std::isfinite(value)) {
      first = MatrixPosition{i / values.cols, i % values.cols};
    }
  }
  return first;
}

}  // namespace quantmill::reference
