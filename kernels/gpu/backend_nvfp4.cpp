// NVFP4 blocks on a GPU.

#include "kernels/backends.h"
#include "kernels/gpu/call.h"
#include "kernels/gpu/first_nonfinite.h"

namespace quantmill::gpu {
namespace {

std::size_t row_blocks(std::size_t cols) {
  return cols / kNvfp4Block;
}

// Rows of values, with codes (if there are any) and scales beside them.
Footprint footprint(const Context& context, ConstFloatMatrix values, std::size_t other_bytes) {
  return {values.cols * lane_bytes_each(context, values.data) + values.cols / 2 +
              row_blocks(values.cols),
          other_bytes,
          values.cols};
}

}  // namespace

void nvfp4_block_scales(const Context& context,
                        ConstFloatMatrix values,
                        GlobalScale global,
                        std::span<std::uint8_t> scales) {
  const std::size_t blocks = row_blocks(values.cols);
  in_pieces(context,
            values.rows,
            footprint(context, values, 0),
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "finding scales of NVFP4");
              call.launch(Nvfp4ScalesBody{call.in(rows_of(values, begin, count)),
                                          global,
                                          call.out(rows_of(scales, blocks, begin, count))},
                          count * blocks);
              call.finish();
            });
}

void nvfp4_search_scales(const Context& context,
                         ConstFloatMatrix values,
                         GlobalScale global,
                         std::span<const float> importance,
                         std::span<std::uint8_t> scales) {
  const std::size_t blocks = row_blocks(values.cols);
  in_pieces(
      context,
      values.rows,
      footprint(context, values, importance.size_bytes()),
      [&](std::size_t begin, std::size_t count) {
        Call call(context, "searching scales of NVFP4");
        const float* const from = call.in(rows_of(values, begin, count));
        std::uint8_t* const found = call.out(rows_of(scales, blocks, begin, count));
        call.launch(Nvfp4ScalesBody{from, global, found}, count * blocks);
        call.launch(
            Nvfp4SearchBody{from, global, call.in(importance), static_cast<Index>(blocks), found},
            count * blocks);
        call.finish();
      });
}

void nvfp4_quantize(const Context& context,
                    ConstFloatMatrix values,
                    std::span<const std::uint8_t> scales,
                    GlobalScale global,
                    std::span<std::uint8_t> packed) {
  const std::size_t blocks = row_blocks(values.cols);
  in_pieces(context,
            values.rows,
            footprint(context, values, 0),
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "quantizing to NVFP4");
              call.launch(
                  Nvfp4QuantizeBody{call.in(rows_of(values, begin, count)),
                                    call.in(rows_of(scales, blocks, begin, count)),
                                    global,
                                    call.out(rows_of(packed, values.cols / 2, begin, count))},
                  count * blocks);
              call.finish();
            });
}

std::optional<MatrixPosition> nvfp4_dequantize(const Context& context,
                                               std::span<const std::uint8_t> packed,
                                               std::span<const std::uint8_t> scales,
                                               GlobalScale global,
                                               FloatMatrix values) {
  const std::size_t blocks = row_blocks(values.cols);
  FirstNonfinite first;
  in_pieces(context,
            values.rows,
            footprint(context, values, 0),
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "decoding NVFP4");
              call.launch(
                  Nvfp4DequantizeBody{call.in(rows_of(packed, values.cols / 2, begin, count)),
                                      call.in(rows_of(scales, blocks, begin, count)),
                                      global,
                                      call.out(rows_of(values, begin, count)),
                                      first.begin(call)},
                  count * blocks);
              call.finish();
              first.end(begin * values.cols);
            });
  return first.position(values.cols);
}

}  // namespace quantmill::gpu
