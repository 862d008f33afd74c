#include "kernels/fp8.h"

#include "kernels/backends.h"
#include "kernels/codec.h"

namespace quantmill::reference {

std::optional<MatrixPosition> fp8_dequantize(std::span<const std::uint8_t> codes,
                                             ConstFloatMatrix scales,
                                             const BlockGrid& grid,
                                             FloatMatrix values) {
  std::optional<MatrixPosition> first;
  for (std::size_t r = 0; r < values.rows; ++r) {
    const std::span<const float> scale_row = scales.row((grid.first_row + r) / grid.rows);
    for (std::size_t c = 0; c < values.cols; ++c) {
      const std::uint8_t code = codes[r * values.cols + c];
      const float value = decode_element(ElementFormat::kE4m3, code) * scale_row[c / grid.cols];
      values.row(r)[c] = value;
      if (!first && (float_bits(value) & 0x7f800000U) == 0x7f800000U) {
        first = MatrixPosition{r, c};
      }
    }
  }
  return first;
}

void fp8_quantize(ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  const BlockGrid& grid,
                  std::span<std::uint8_t> codes) {
  for (std::size_t r = 0; r < values.rows; ++r) {
    const std::span<const float> scale_row = scales.row((grid.first_row + r) / grid.rows);
    for (std::size_t c = 0; c < values.cols; ++c) {
      codes[r * values.cols + c] =
          encode_element(ElementFormat::kE4m3, values.row(r)[c] / scale_row[c / grid.cols]);
    }
  }
}

}  // namespace quantmill::reference
