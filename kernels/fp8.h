#pragma once

// FP8 weights: e4m3 elements (largest 448, no infinity; OCP 8-bit Floating Point Specification 1.0)
// whose blocks of rows x columns share a scale: 128 x 128 as DeepSeek-V3 stores them, 1 x all
// columns (per channel), or one block (per tensor). Not for blocks with E8M0 scales along a row,
// MXFP8: those are in kernels/mx.h.
//
// A value is code * scale: what is called weight_scale, weight_scale_inv or scale in files is
// always this factor. Scales are given as floats, whatever the file stores (F32, BF16, or E8M0 by
// decode_e8m0).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "device/context.h"
#include "kernels/block_grid.h"
#include "kernels/matrix.h"
#include "kernels/stored_scale.h"

namespace quantmill {

constexpr float kE4m3Largest = 448;

// The scale of a block whose largest magnitude is `amax`, as a file of BF16, F16 or F32 scales
// holds it: amax / 448, rounded to float and then to that type, by stored_scale never 0. A block of
// zeros has 1 (as transformers' Fp8Quantize; compressed-tensors writes 2^-7; vLLM's
// per_block_cast_to_fp8 takes amax for at least 1e-4).
constexpr float fp8_scale(float amax, DType stored) {
  return amax == 0 ? 1.0F : stored_scale(amax / kE4m3Largest, stored);
}

// values = code * scale, rounded to float once.
//   codes: [values.rows, values.cols], one a byte.
//   scales: [at least num_block_rows, num_block_cols] of the grid.
// Returns the first NaN or infinity in row-major order, if any, whether it comes from a code (0x7f,
// 0xff), from a scale, or from a product beyond the largest float; `values` is filled all the same.
std::optional<MatrixPosition> fp8_dequantize(const Context& context,
                                             std::span<const std::uint8_t> codes,
                                             ConstFloatMatrix scales,
                                             const BlockGrid& grid,
                                             FloatMatrix values);

// codes = e4m3(value / scale): the quotient rounded to float, then to nearest, ties to even,
// saturating at 448; signs are kept, that of zero too. values must be finite, scales positive.
// Shapes as in fp8_dequantize.
void fp8_quantize(const Context& context,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  const BlockGrid& grid,
                  std::span<std::uint8_t> codes);

}  // namespace quantmill
