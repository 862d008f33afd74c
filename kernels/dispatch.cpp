// The public kernels: check shapes once, then hand over to the backend that the context names.

#include <cmath>

#include "base/error.h"
#include "kernels/backends.h"
#include "kernels/on_backend.h"

namespace quantmill {
namespace {

std::size_t stored_bytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

void check_mx_shapes(std::size_t rows,
                     std::size_t cols,
                     ElementFormat element,
                     std::size_t packed_bytes,
                     std::size_t scale_bytes) {
  check_invariant(cols % kMxBlock == 0, "the columns of an MX matrix must be a multiple of 32");
  check_invariant(packed_bytes == rows * mx_packed_bytes(element, cols),
                  "the packed elements of an MX matrix have the wrong size");
  check_invariant(scale_bytes == rows * (cols / kMxBlock),
                  "the scales of an MX matrix have the wrong size");
}

void check_ties(const MxSpec& spec) {
  check_invariant(spec.ties == TieRule::kEven ||
                      (spec.element == ElementFormat::kE2m1 && spec.scale_rule != ScaleRule::kMse),
                  "the seed tie rule exists for e2m1 only, and not with the scale rule mse");
}

}  // namespace

bool is_convertible(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32;
}

std::optional<MatrixPosition> decode_to_float(const Context& context,
                                              DType dtype,
                                              std::span<const std::byte> stored,
                                              FloatMatrix out) {
  check_invariant(is_convertible(dtype), "only BF16, F16 and F32 elements decode to float");
  check_invariant(stored.size() == out.rows * out.cols * stored_bytes(dtype),
                  "the stored elements of a matrix have the wrong size");
  return on_backend(context,
                    reference::decode_to_float,
                    cpu::decode_to_float,
                    gpu::decode_to_float,
                    dtype,
                    stored,
                    out);
}

std::optional<MatrixPosition> encode_from_float(const Context& context,
                                                ConstFloatMatrix values,
                                                DType dtype,
                                                std::span<std::byte> stored) {
  check_invariant(is_convertible(dtype), "floats encode to BF16, F16 and F32 only");
  check_invariant(stored.size() == values.rows * values.cols * stored_bytes(dtype),
                  "the stored elements of a matrix have the wrong size");
  return on_backend(context,
                    reference::encode_from_float,
                    cpu::encode_from_float,
                    gpu::encode_from_float,
                    values,
                    dtype,
                    stored);
}

void scale_matrix(const Context& context, FloatMatrix values, const MatrixFactors& factors) {
  for (const std::span<const float> side : {factors.columns, factors.column_divisors}) {
    check_invariant(side.empty() || side.size() == values.cols,
                    "there must be one factor for each column");
  }
  for (const std::span<const float> side : {factors.rows, factors.row_divisors}) {
    check_invariant(side.empty() || side.size() == values.rows,
                    "there must be one factor for each row");
  }
  on_backend(
      context, reference::scale_matrix, cpu::scale_matrix, gpu::scale_matrix, values, factors);
}

void mx_quantize(const Context& context,
                 const MxSpec& spec,
                 ConstFloatMatrix values,
                 std::span<std::uint8_t> packed,
                 std::span<std::uint8_t> scales,
                 std::span<const float> importance) {
  check_mx_shapes(values.rows, values.cols, spec.element, packed.size(), scales.size());
  check_ties(spec);
  check_invariant(importance.empty() ||
                      (spec.scale_rule == ScaleRule::kMse && importance.size() == values.cols),
                  "the importance of columns is of the scale rule mse, one for each");
  on_backend(context,
             reference::mx_quantize,
             cpu::mx_quantize,
             gpu::mx_quantize,
             spec,
             values,
             packed,
             scales,
             importance);
}

void mx_encode(const Context& context,
               ElementFormat element,
               ConstFloatMatrix values,
               std::span<const std::uint8_t> scales,
               std::span<std::uint8_t> packed) {
  check_mx_shapes(values.rows, values.cols, element, packed.size(), scales.size());
  if (context.backend == Backend::kGpu) {
    gpu::mx_encode(context, element, values, scales, packed);
  } else {
    reference::mx_encode(element, values, scales, packed);
  }
}

void mx_dequantize(const Context& context,
                   ElementFormat element,
                   std::span<const std::uint8_t> packed,
                   std::span<const std::uint8_t> scales,
                   FloatMatrix values) {
  check_mx_shapes(values.rows, values.cols, element, packed.size(), scales.size());
  on_backend(context,
             reference::mx_dequantize,
             cpu::mx_dequantize,
             gpu::mx_dequantize,
             element,
             packed,
             scales,
             values);
}

void mx_error_curve(const Context& context,
                    const MxSpec& spec,
                    ConstFloatMatrix values,
                    std::span<const float> importance,
                    ConstFloatMatrix candidates,
                    std::span<double> sums,
                    std::span<const double> row_weights) {
  check_invariant(values.cols % kMxBlock == 0,
                  "the columns of an MX matrix must be a multiple of 32");
  check_invariant(importance.size() == values.cols, "there must be one importance for each column");
  check_invariant(candidates.cols == values.cols,
                  "the candidate scales must be [candidates, columns]");
  check_invariant(sums.size() == values.cols / kMxBlock * candidates.rows,
                  "the sums must be [blocks of columns, candidates]");
  check_invariant(row_weights.empty() || row_weights.size() == values.rows,
                  "there must be one weight for each row");
  check_ties(spec);
  on_backend(context,
             reference::mx_error_curve,
             cpu::mx_error_curve,
             gpu::mx_error_curve,
             spec,
             values,
             importance,
             candidates,
             sums,
             row_weights);
}

double ErrorSums::relative() const {
  return squared_error == 0 ? 0 : std::sqrt(squared_error / squared_norm);
}

void add_errors(const Context& context,
                ConstFloatMatrix got,
                ConstFloatMatrix want,
                ErrorSums& sums,
                std::span<const float> weights) {
  check_invariant(got.rows == want.rows && got.cols == want.cols,
                  "two matrices that are compared must have the same shape");
  check_invariant(weights.empty() || weights.size() == want.cols,
                  "there must be one weight for each column");
  on_backend(
      context, reference::add_errors, cpu::add_errors, gpu::add_errors, got, want, sums, weights);
}

void add_magnitudes(const Context& context,
                    ConstFloatMatrix values,
                    std::span<const float> weights,
                    const ColumnSums& columns,
                    std::span<double> row_squares) {
  check_invariant(weights.size() == values.cols && columns.squares.size() == values.cols &&
                      columns.shares.size() == values.cols,
                  "there must be one weight and one sum for each column");
  check_invariant(row_squares.size() == values.rows, "there must be one sum for each row");
  on_backend(context,
             reference::add_magnitudes,
             cpu::add_magnitudes,
             gpu::add_magnitudes,
             values,
             weights,
             columns,
             row_squares);
}

}  // namespace quantmill
