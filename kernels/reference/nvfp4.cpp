#include "kernels/nvfp4.h"

#include <algorithm>
#include <cmath>

#include "kernels/backends.h"

namespace quantmill::reference {

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

void nvfp4_quantize(ConstFloatMatrix values,
                    std::span<const std::uint8_t> scales,
                    GlobalScale global,
                    std::span<std::uint8_t> packed) {
  const auto code = [&](std::size_t i) -> unsigned {
    const float factor = nvfp4_factor(scales[i / kNvfp4Block], global);
    const float scaled = factor == 0 ? values.data[i] * 0 : values.data[i] / factor;
    return encode_element(ElementFormat::kE2m1, scaled);
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
