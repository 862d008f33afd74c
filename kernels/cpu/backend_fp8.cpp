// The cpu backend of kernels/fp8.h and block_grid.h.

#include "kernels/backends.h"
#include "kernels/cpu/entries.h"

namespace quantmill::cpu {

std::optional<MatrixPosition> fp8_dequantize(Isa isa,
                                             std::span<const std::uint8_t> codes,
                                             ConstFloatMatrix scales,
                                             const BlockGrid& grid,
                                             FloatMatrix values) {
  bool is_finite = true;
  for (std::size_t r = 0; r < values.rows; ++r) {
    const float* scale_row = scales.row((grid.first_row + r) / grid.rows).data();
    is_finite &= entries(isa).fp8_decode(
        {codes.data() + r * values.cols, scale_row, values.row(r).data(), values.cols, grid.cols});
  }
  // Where something is not finite, the reference finds the place.
  return is_finite ? std::nullopt : reference::fp8_dequantize(codes, scales, grid, values);
}

void fp8_quantize(Isa isa,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  const BlockGrid& grid,
                  std::span<std::uint8_t> codes) {
  for (std::size_t r = 0; r < values.rows; ++r) {
    const float* scale_row = scales.row((grid.first_row + r) / grid.rows).data();
    entries(isa).fp8_encode(
        {values.row(r).data(), scale_row, codes.data() + r * values.cols, values.cols, grid.cols});
  }
}

void block_amax(Isa isa, ConstFloatMatrix values, const BlockGrid& grid, FloatMatrix amax) {
  for (std::size_t r = 0; r < values.rows; ++r) {
    float* amax_row = amax.row((grid.first_row + r) / grid.rows).data();
    entries(isa).amax({values.row(r).data(), amax_row, values.cols, grid.cols});
  }
}

}  // namespace quantmill::cpu
