// Conversions, factors, errors and magnitudes on a GPU.

#include <algorithm>
#include <vector>

#include "kernels/backends.h"
#include "kernels/gpu/call.h"
#include "kernels/gpu/first_nonfinite.h"

namespace quantmill::gpu {
namespace {

Stored16 stored_type(DType dtype) {
  return dtype == DType::kBf16 ? Stored16::kBf16 : Stored16::kF16;
}

}  // namespace

std::optional<MatrixPosition> decode_to_float(const Context& context,
                                              DType dtype,
                                              std::span<const std::byte> stored,
                                              FloatMatrix out) {
  const std::size_t element = dtype == DType::kF32 ? 4 : 2;
  FirstNonfinite first;
  in_pieces(context,
            out.rows * out.cols,
            {element + lane_bytes_each(context, out.data)},
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "decoding weights");
              const std::span<float> values(out.data + begin, count);
              const std::byte* const bytes =
                  call.in(stored.subspan(begin * element, count * element));
              Index* const nonfinite = first.begin(call);
              if (dtype == DType::kF32) {
                float* const to = call.out(values);
                call.launch(CopyBody{reinterpret_cast<const float*>(bytes), to, nonfinite}, count);
              } else {
                call.launch(DecodeBody{reinterpret_cast<const std::uint16_t*>(bytes),
                                       call.out(values),
                                       stored_type(dtype),
                                       nonfinite},
                            count);
              }
              call.finish();
              first.end(begin);
            });
  return first.position(out.cols);
}

std::optional<MatrixPosition> encode_from_float(const Context& context,
                                                ConstFloatMatrix values,
                                                DType dtype,
                                                std::span<std::byte> stored) {
  const std::size_t element = dtype == DType::kF32 ? 4 : 2;
  FirstNonfinite first;
  in_pieces(
      context,
      values.rows * values.cols,
      {element + lane_bytes_each(context, values.data)},
      [&](std::size_t begin, std::size_t count) {
        Call call(context, "encoding weights");
        const float* const from = call.in(std::span(values.data + begin, count));
        std::byte* const to = call.out(stored.subspan(begin * element, count * element));
        Index* const nonfinite = first.begin(call);
        if (dtype == DType::kF32) {
          call.launch(CopyBody{from, reinterpret_cast<float*>(to), nonfinite}, count);
        } else {
          call.launch(
              EncodeBody{from, reinterpret_cast<std::uint16_t*>(to), stored_type(dtype), nonfinite},
              count);
        }
        call.finish();
        first.end(begin);
      });
  return first.position(values.cols);
}

void scale_matrix(const Context& context, FloatMatrix values, const MatrixFactors& factors) {
  in_pieces(context,
            values.rows,
            {(values.cols * lane_bytes_each(context, values.data)) + 2 * sizeof(float),
             2 * values.cols * sizeof(float),
             values.cols},
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "folding weights");
              call.launch(ScaleBody{call.change(rows_of(values, begin, count)),
                                    static_cast<Index>(values.cols),
                                    call.in(factors.columns),
                                    call.in(rows_if_any(factors.rows, 1, begin, count)),
                                    call.in(factors.column_divisors),
                                    call.in(rows_if_any(factors.row_divisors, 1, begin, count))},
                          count * values.cols);
              call.finish();
            });
}

void add_errors(const Context& context,
                ConstFloatMatrix got,
                ConstFloatMatrix want,
                ErrorSums& sums,
                std::span<const float> weights) {
  std::vector<double> errors;
  std::vector<double> norms;
  const std::size_t value_bytes =
      lane_bytes_each(context, got.data) + lane_bytes_each(context, want.data);
  in_pieces(context,
            want.rows,
            {want.cols * value_bytes + 2 * (kLanes + 1) * sizeof(double),
             weights.size_bytes(),
             std::max<std::size_t>(want.cols, kLanes)},
            [&](std::size_t begin, std::size_t count) {
              errors.resize(count);
              norms.resize(count);
              Call call(context, "measuring errors");
              auto* const error_lanes = call.scratch<double>(count * kLanes);
              auto* const norm_lanes = call.scratch<double>(count * kLanes);
              call.launch(ErrorLanesBody{call.in(rows_of(got, begin, count)),
                                         call.in(rows_of(want, begin, count)),
                                         call.in(weights),
                                         static_cast<Index>(want.cols),
                                         error_lanes,
                                         norm_lanes},
                          count * kLanes);
              call.launch(AddLanesBody{error_lanes, call.out(std::span(errors))}, count);
              call.launch(AddLanesBody{norm_lanes, call.out(std::span(norms))}, count);
              call.finish();
              for (std::size_t row = 0; row < count; ++row) {
                sums.squared_error += errors[row];
                sums.squared_norm += norms[row];
              }
            });
}

void add_magnitudes(const Context& context,
                    ConstFloatMatrix values,
                    std::span<const float> weights,
                    const ColumnSums& columns,
                    std::span<double> row_squares) {
  const std::size_t blocks = (values.cols + kShareCols - 1) / kShareCols;
  in_pieces(context,
            values.rows,
            {values.cols * lane_bytes_each(context, values.data) + blocks * sizeof(float) +
                 (kLanes + 1) * sizeof(double),
             values.cols * (2 * sizeof(double) + sizeof(float)),
             std::max<std::size_t>(values.cols, kLanes)},
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "measuring magnitudes");
              const auto cols = static_cast<Index>(values.cols);
              const float* const from = call.in(rows_of(values, begin, count));
              auto* const inverse = call.scratch<float>(count * blocks);
              call.launch(InverseAmaxBody{from, cols, static_cast<Index>(blocks), inverse},
                          count * blocks);
              call.launch(ColumnMagnitudesBody{from,
                                               inverse,
                                               static_cast<Index>(count),
                                               cols,
                                               static_cast<Index>(blocks),
                                               call.change(columns.squares),
                                               call.change(columns.shares)},
                          values.cols);
              auto* const lanes = call.scratch<double>(count * kLanes);
              call.launch(RowSquaresBody{from, call.in(weights), cols, lanes}, count * kLanes);
              call.launch(AddLanesBody{lanes, call.out(row_squares.subspan(begin, count))}, count);
              call.finish();
            });
}

void block_amax(const Context& context,
                ConstFloatMatrix values,
                const BlockGrid& grid,
                FloatMatrix amax) {
  const std::size_t pieces = (values.cols + kAmaxCols - 1) / kAmaxCols;
  in_pieces(context,
            values.rows,
            {values.cols * lane_bytes_each(context, values.data),
             amax.rows * amax.cols * sizeof(float),
             values.cols},
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "finding the largest weights");
              call.launch(AmaxBody{call.in(rows_of(values, begin, count)),
                                   static_cast<Index>(values.cols),
                                   static_cast<Index>(pieces),
                                   index_of(grid.rows),
                                   index_of(grid.cols),
                                   index_of(grid.first_row + begin),
                                   static_cast<Index>(amax.cols),
                                   call.change(amax)},
                          count * pieces);
              call.finish();
            });
}

}  // namespace quantmill::gpu
