// The public kernels of nvfp4.h: check shapes once, then hand over to the backend that the context
// names.

#include <cmath>

#include "base/error.h"
#include "kernels/backends.h"
#include "kernels/on_backend.h"

namespace quantmill {
namespace {

void check_shapes(std::size_t rows, std::size_t cols, std::size_t scale_bytes) {
  check_invariant(cols % kNvfp4Block == 0,
                  "the columns of an NVFP4 matrix must be a multiple of 16");
  check_invariant(scale_bytes == rows * (cols / kNvfp4Block),
                  "the scales of an NVFP4 matrix have the wrong size");
}

void check_packed(std::size_t rows, std::size_t cols, std::size_t packed_bytes) {
  check_invariant(packed_bytes == rows * (cols / 2),
                  "the packed elements of an NVFP4 matrix have the wrong size");
}

void check_global(GlobalScale global) {
  check_invariant(global.value > 0 && std::isfinite(global.value),
                  "the global scale of an NVFP4 matrix must be positive and finite");
}

}  // namespace

void nvfp4_block_scales(const Context& context,
                        ConstFloatMatrix values,
                        GlobalScale global,
                        std::span<std::uint8_t> scales) {
  check_shapes(values.rows, values.cols, scales.size());
  check_global(global);
  on_backend(context,
             reference::nvfp4_block_scales,
             cpu::nvfp4_block_scales,
             gpu::nvfp4_block_scales,
             values,
             global,
             scales);
}

void nvfp4_search_scales(const Context& context,
                         ConstFloatMatrix values,
                         GlobalScale global,
                         std::span<const float> importance,
                         std::span<std::uint8_t> scales) {
  check_shapes(values.rows, values.cols, scales.size());
  check_global(global);
  check_invariant(importance.empty() || importance.size() == values.cols,
                  "there must be one importance for each column");
  on_backend(context,
             reference::nvfp4_search_scales,
             cpu::nvfp4_search_scales,
             gpu::nvfp4_search_scales,
             values,
             global,
             importance,
             scales);
}

void nvfp4_quantize(const Context& context,
                    ConstFloatMatrix values,
                    std::span<const std::uint8_t> scales,
                    GlobalScale global,
                    std::span<std::uint8_t> packed) {
  check_shapes(values.rows, values.cols, scales.size());
  check_packed(values.rows, values.cols, packed.size());
  check_global(global);
  on_backend(context,
             reference::nvfp4_quantize,
             cpu::nvfp4_quantize,
             gpu::nvfp4_quantize,
             values,
             scales,
             global,
             packed);
}

std::optional<MatrixPosition> nvfp4_dequantize(const Context& context,
                                               std::span<const std::uint8_t> packed,
                                               std::span<const std::uint8_t> scales,
                                               GlobalScale global,
                                               FloatMatrix values) {
  check_shapes(values.rows, values.cols, scales.size());
  check_packed(values.rows, values.cols, packed.size());
  return on_backend(context,
                    reference::nvfp4_dequantize,
                    cpu::nvfp4_dequantize,
                    gpu::nvfp4_dequantize,
                    packed,
                    scales,
                    global,
                    values);
}

}  // namespace quantmill
