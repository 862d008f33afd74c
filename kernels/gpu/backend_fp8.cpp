// FP8 with scales of blocks on a GPU.

#include "kernels/backends.h"
#include "kernels/gpu/call.h"
#include "kernels/gpu/first_nonfinite.h"

namespace quantmill::gpu {
namespace {

ScaleGrid scale_grid(Call& call,
                     ConstFloatMatrix scales,
                     const BlockGrid& grid,
                     std::size_t begin) {
  return {call.in(scales),
          static_cast<Index>(scales.cols),
          index_of(grid.rows),
          index_of(grid.cols),
          index_of(grid.first_row + begin)};
}

// Rows of values with a code each, and the scales.
Footprint footprint(const Context& context, ConstFloatMatrix values, ConstFloatMatrix scales) {
  return {values.cols * (lane_bytes_each(context, values.data) + 1),
          scales.rows * scales.cols * sizeof(float),
          values.cols};
}

}  // namespace

std::optional<MatrixPosition> fp8_dequantize(const Context& context,
                                             std::span<const std::uint8_t> codes,
                                             ConstFloatMatrix scales,
                                             const BlockGrid& grid,
                                             FloatMatrix values) {
  FirstNonfinite first;
  in_pieces(context,
            values.rows,
            footprint(context, values, scales),
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "decoding FP8");
              call.launch(Fp8DequantizeBody{call.in(rows_of(codes, values.cols, begin, count)),
                                            scale_grid(call, scales, grid, begin),
                                            static_cast<Index>(values.cols),
                                            call.out(rows_of(values, begin, count)),
                                            first.begin(call)},
                          count * values.cols);
              call.finish();
              first.end(begin * values.cols);
            });
  return first.position(values.cols);
}

void fp8_quantize(const Context& context,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  const BlockGrid& grid,
                  std::span<std::uint8_t> codes) {
  in_pieces(context,
            values.rows,
            footprint(context, values, scales),
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "quantizing to FP8");
              call.launch(Fp8QuantizeBody{call.in(rows_of(values, begin, count)),
                                          scale_grid(call, scales, grid, begin),
                                          static_cast<Index>(values.cols),
                                          call.out(rows_of(codes, values.cols, begin, count))},
                          count * values.cols);
              call.finish();
            });
}

}  // namespace quantmill::gpu
