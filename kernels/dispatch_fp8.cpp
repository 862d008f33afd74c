// The public kernels of fp8.h and block_grid.h: check shapes once, then hand over to the backend
// that the context names.

#include "base/error.h"
#include "kernels/backends.h"
#include "kernels/on_backend.h"

namespace quantmill {
namespace {

void check_grid(std::size_t rows,
                std::size_t cols,
                const BlockGrid& grid,
                std::size_t grid_rows,
                std::size_t grid_cols) {
  check_invariant(grid.rows > 0 && grid.cols > 0, "a block must have rows and columns");
  check_invariant(grid_cols == num_block_cols(grid, cols),
                  "there must be one scale for each block of a row");
  check_invariant(rows == 0 || grid_rows >= num_block_rows(grid, rows),
                  "there must be one row of scales for each row of blocks");
}

}  // namespace

void block_amax(const Context& context,
                ConstFloatMatrix values,
                const BlockGrid& grid,
                FloatMatrix amax) {
  check_grid(values.rows, values.cols, grid, amax.rows, amax.cols);
  on_backend(context, reference::block_amax, cpu::block_amax, gpu::block_amax, values, grid, amax);
}

std::optional<MatrixPosition> fp8_dequantize(const Context& context,
                                             std::span<const std::uint8_t> codes,
                                             ConstFloatMatrix scales,
                                             const BlockGrid& grid,
                                             FloatMatrix values) {
  check_grid(values.rows, values.cols, grid, scales.rows, scales.cols);
  check_invariant(codes.size() == values.rows * values.cols,
                  "the codes of an FP8 matrix have the wrong size");
  return on_backend(context,
                    reference::fp8_dequantize,
                    cpu::fp8_dequantize,
                    gpu::fp8_dequantize,
                    codes,
                    scales,
                    grid,
                    values);
}

void fp8_quantize(const Context& context,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  const BlockGrid& grid,
                  std::span<std::uint8_t> codes) {
  check_grid(values.rows, values.cols, grid, scales.rows, scales.cols);
  check_invariant(codes.size() == values.rows * values.cols,
                  "the codes of an FP8 matrix have the wrong size");
  on_backend(context,
             reference::fp8_quantize,
             cpu::fp8_quantize,
             gpu::fp8_quantize,
             values,
             scales,
             grid,
             codes);
}

}  // namespace quantmill
