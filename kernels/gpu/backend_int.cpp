// INT4 and INT8 in groups, and their packing, on a GPU.

#include <algorithm>

#include "kernels/backends.h"
#include "kernels/gpu/call.h"
#include "kernels/gpu/first_nonfinite.h"

namespace quantmill::gpu {
namespace {

IntFields fields_of(const IntPacking& packing) {
  return {static_cast<Index>(packing.bits),
          packing.order == NibbleOrder::kAwq,
          packing.code == IntCode::kOffset};
}

// Groups of rows: their values, ranges, scales, zero points and what else.
Footprint footprint(const Context& context,
                    ConstFloatMatrix values,
                    std::size_t groups,
                    std::size_t group_bytes,
                    std::size_t other_bytes) {
  return {values.cols * (lane_bytes_each(context, values.data) + 1) +
              groups * (3 * sizeof(float) + 1 + group_bytes),
          other_bytes,
          std::max(values.cols, groups * kNumClips)};
}

// Null if there are none.
std::int8_t* out_zero_points(Call& call, std::span<std::int8_t> zero_points) {
  return zero_points.empty() ? nullptr : call.out(zero_points);
}

}  // namespace

void int_scales(const Context& context,
                const IntSpec& spec,
                ConstFloatMatrix values,
                float clip,
                FloatMatrix scales,
                std::span<std::int8_t> zero_points) {
  if (spec.is_symmetric) {
    zero_points = {};
  }
  in_pieces(
      context,
      scales.rows,
      footprint(context, values, scales.cols, 0, 0),
      [&](std::size_t begin, std::size_t count) {
        Call call(context, "finding scales of integers");
        const std::size_t groups = count * scales.cols;
        auto* const low = call.scratch<float>(groups);
        auto* const high = call.scratch<float>(groups);
        call.launch(
            IntRangeBody{
                call.in(rows_of(values, begin, count)), static_cast<Index>(spec.group), low, high},
            groups);
        call.launch(IntScaleBody{spec,
                                 low,
                                 high,
                                 clip,
                                 call.out(rows_of(scales, begin, count)),
                                 out_zero_points(
                                     call, rows_if_any(zero_points, scales.cols, begin, count))},
                    groups);
        call.finish();
      });
}

void int_search_scales(const Context& context,
                       const IntSpec& spec,
                       ConstFloatMatrix values,
                       std::span<const float> importance,
                       FloatMatrix scales,
                       std::span<std::int8_t> zero_points) {
  if (spec.is_symmetric) {
    zero_points = {};
  }
  in_pieces(
      context,
      scales.rows,
      footprint(context, values, scales.cols, kNumClips * sizeof(float), importance.size_bytes()),
      [&](std::size_t begin, std::size_t count) {
        Call call(context, "searching scales of integers");
        const std::size_t groups = count * scales.cols;
        auto* const low = call.scratch<float>(groups);
        auto* const high = call.scratch<float>(groups);
        auto* const errors = call.scratch<float>(groups * kNumClips);
        const float* const from = call.in(rows_of(values, begin, count));
        const auto group = static_cast<Index>(spec.group);
        call.launch(IntRangeBody{from, group, low, high}, groups);
        call.launch(IntErrorBody{spec,
                                 from,
                                 group,
                                 static_cast<Index>(scales.cols),
                                 call.in(importance),
                                 low,
                                 high,
                                 errors},
                    groups * kNumClips);
        call.launch(
            IntPickBody{spec,
                        low,
                        high,
                        errors,
                        call.out(rows_of(scales, begin, count)),
                        out_zero_points(call, rows_if_any(zero_points, scales.cols, begin, count))},
            groups);
        call.finish();
      });
}

void int_quantize(const Context& context,
                  const IntSpec& spec,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  std::span<const std::int8_t> zero_points,
                  std::span<std::int8_t> codes) {
  in_pieces(context,
            values.rows,
            footprint(context, values, scales.cols, 0, 0),
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "quantizing to integers");
              call.launch(
                  IntQuantizeBody{call.in(rows_of(values, begin, count)),
                                  call.in(rows_of(scales, begin, count)),
                                  call.in(rows_if_any(zero_points, scales.cols, begin, count)),
                                  static_cast<Index>(spec.group),
                                  static_cast<float>(int_smallest(spec.bits)),
                                  static_cast<float>(int_largest(spec.bits)),
                                  call.out(rows_of(codes, values.cols, begin, count))},
                  count * values.cols);
              call.finish();
            });
}

std::optional<MatrixPosition> int_dequantize(const Context& context,
                                             std::span<const std::int8_t> codes,
                                             ConstFloatMatrix scales,
                                             std::span<const std::int8_t> zero_points,
                                             std::span<const std::uint32_t> column_groups,
                                             FloatMatrix values) {
  FirstNonfinite first;
  const std::size_t width = scales.cols == 0 ? 1 : values.cols / scales.cols;
  in_pieces(context,
            values.rows,
            footprint(context, values, scales.cols, 0, column_groups.size_bytes()),
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "decoding integers");
              call.launch(
                  IntDequantizeBody{call.in(rows_of(codes, values.cols, begin, count)),
                                    call.in(rows_of(scales, begin, count)),
                                    call.in(rows_if_any(zero_points, scales.cols, begin, count)),
                                    call.in(column_groups),
                                    static_cast<Index>(values.cols),
                                    static_cast<Index>(scales.cols),
                                    index_of(width),
                                    call.out(rows_of(values, begin, count)),
                                    first.begin(call)},
                  count * values.cols);
              call.finish();
              first.end(begin * values.cols);
            });
  return first.position(values.cols);
}

void int_pack_columns(const Context& context,
                      const IntPacking& packing,
                      std::span<const std::int8_t> codes,
                      std::size_t rows,
                      std::size_t cols,
                      std::span<std::uint8_t> packed) {
  const std::size_t words = int_packed_words(packing.bits, cols);
  in_pieces(context, rows, {cols + 4 * words, 0, cols}, [&](std::size_t begin, std::size_t count) {
    Call call(context, "packing integers");
    call.launch(IntPackColumnsBody{fields_of(packing),
                                   call.in(rows_of(codes, cols, begin, count)),
                                   static_cast<Index>(cols),
                                   static_cast<Index>(words),
                                   reinterpret_cast<std::uint32_t*>(
                                       call.out(rows_of(packed, 4 * words, begin, count)))},
                count * words);
    call.finish();
  });
}

void int_unpack_columns(const Context& context,
                        const IntPacking& packing,
                        std::span<const std::uint8_t> packed,
                        std::size_t rows,
                        std::size_t cols,
                        std::span<std::int8_t> codes) {
  const std::size_t words = int_packed_words(packing.bits, cols);
  in_pieces(context, rows, {cols + 4 * words, 0, cols}, [&](std::size_t begin, std::size_t count) {
    Call call(context, "unpacking integers");
    call.launch(IntUnpackColumnsBody{fields_of(packing),
                                     reinterpret_cast<const std::uint32_t*>(
                                         call.in(rows_of(packed, 4 * words, begin, count))),
                                     static_cast<Index>(cols),
                                     static_cast<Index>(words),
                                     call.out(rows_of(codes, cols, begin, count))},
                count * words);
    call.finish();
  });
}

void int_pack_rows(const Context& context,
                   const IntPacking& packing,
                   std::span<const std::int8_t> codes,
                   std::size_t rows,
                   std::size_t cols,
                   std::span<std::uint8_t> packed) {
  const std::size_t together = 32 / packing.bits;
  in_pieces(context,
            rows,
            {2 * cols, 4 * cols, cols, together},
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "packing integers");
              const std::size_t words = int_packed_words(packing.bits, count);
              call.launch(IntPackRowsBody{fields_of(packing),
                                          call.in(rows_of(codes, cols, begin, count)),
                                          static_cast<Index>(count),
                                          static_cast<Index>(cols),
                                          reinterpret_cast<std::uint32_t*>(call.out(
                                              rows_of(packed, 4 * cols, begin / together, words)))},
                          words * cols);
              call.finish();
            });
}

void int_unpack_rows(const Context& context,
                     const IntPacking& packing,
                     std::span<const std::uint8_t> packed,
                     std::size_t rows,
                     std::size_t cols,
                     std::span<std::int8_t> codes) {
  const std::size_t together = 32 / packing.bits;
  in_pieces(context,
            rows,
            {2 * cols, 4 * cols, cols, together},
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "unpacking integers");
              const std::size_t words = int_packed_words(packing.bits, count);
              call.launch(IntUnpackRowsBody{fields_of(packing),
                                            reinterpret_cast<const std::uint32_t*>(call.in(rows_of(
                                                packed, 4 * cols, begin / together, words))),
                                            static_cast<Index>(count),
                                            static_cast<Index>(cols),
                                            call.out(rows_of(codes, cols, begin, count))},
                          words * cols);
              call.finish();
            });
}

}  // namespace quantmill::gpu
