// MX blocks on a GPU.

#include <algorithm>
#include <type_traits>

#include "kernels/backends.h"
#include "kernels/gpu/call.h"

namespace quantmill::gpu {
namespace {

template <ElementFormat kElement>
using ElementConstant = std::integral_constant<ElementFormat, kElement>;

// Calls body with the element as a constant: each has its kernels.
template <typename Body>
void for_element(ElementFormat element, const Body& body) {
  switch (element) {
    case ElementFormat::kE2m1:
      return body(ElementConstant<ElementFormat::kE2m1>());
    case ElementFormat::kE2m3:
      return body(ElementConstant<ElementFormat::kE2m3>());
    case ElementFormat::kE3m2:
      return body(ElementConstant<ElementFormat::kE3m2>());
    case ElementFormat::kE4m3:
      return body(ElementConstant<ElementFormat::kE4m3>());
    case ElementFormat::kE5m2:
      return body(ElementConstant<ElementFormat::kE5m2>());
  }
}

// Rows of values, with codes and scales beside them.
Footprint footprint(const Context& context,
                    ConstFloatMatrix values,
                    std::size_t row_bytes,
                    std::size_t other_bytes) {
  return {values.cols * lane_bytes_each(context, values.data) + row_bytes + values.cols / kMxBlock,
          other_bytes,
          values.cols};
}

}  // namespace

void mx_quantize(const Context& context,
                 const MxSpec& spec,
                 ConstFloatMatrix values,
                 std::span<std::uint8_t> packed,
                 std::span<std::uint8_t> scales,
                 std::span<const float> importance) {
  const std::size_t row_blocks = values.cols / kMxBlock;
  const std::size_t row_bytes = mx_packed_bytes(spec.element, values.cols);
  in_pieces(context,
            values.rows,
            footprint(context, values, row_bytes, importance.size_bytes()),
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "quantizing to MX");
              for_element(spec.element, [&](auto element) {
                call.launch(
                    MxQuantizeBody<element()>{call.in(rows_of(values, begin, count)),
                                              call.out(rows_of(packed, row_bytes, begin, count)),
                                              call.out(rows_of(scales, row_blocks, begin, count)),
                                              call.in(importance),
                                              static_cast<Index>(row_blocks),
                                              spec.scale_rule,
                                              spec.ties},
                    count * row_blocks);
              });
              call.finish();
            });
}

void mx_encode(const Context& context,
               ElementFormat element,
               ConstFloatMatrix values,
               std::span<const std::uint8_t> scales,
               std::span<std::uint8_t> packed) {
  const std::size_t row_blocks = values.cols / kMxBlock;
  const std::size_t row_bytes = mx_packed_bytes(element, values.cols);
  in_pieces(context,
            values.rows,
            footprint(context, values, row_bytes, 0),
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "encoding to MX");
              for_element(element, [&](auto constant) {
                call.launch(
                    MxEncodeBody<constant()>{call.in(rows_of(values, begin, count)),
                                             call.in(rows_of(scales, row_blocks, begin, count)),
                                             call.out(rows_of(packed, row_bytes, begin, count))},
                    count * row_blocks);
              });
              call.finish();
            });
}

void mx_dequantize(const Context& context,
                   ElementFormat element,
                   std::span<const std::uint8_t> packed,
                   std::span<const std::uint8_t> scales,
                   FloatMatrix values) {
  const std::size_t row_blocks = values.cols / kMxBlock;
  const std::size_t row_bytes = mx_packed_bytes(element, values.cols);
  in_pieces(context,
            values.rows,
            footprint(context, values, row_bytes, 0),
            [&](std::size_t begin, std::size_t count) {
              Call call(context, "decoding MX");
              for_element(element, [&](auto constant) {
                call.launch(
                    MxDequantizeBody<constant()>{call.in(rows_of(packed, row_bytes, begin, count)),
                                                 call.in(rows_of(scales, row_blocks, begin, count)),
                                                 call.out(rows_of(values, begin, count))},
                    count * row_blocks);
              });
              call.finish();
            });
}

void mx_error_curve(const Context& context,
                    const MxSpec& spec,
                    ConstFloatMatrix values,
                    std::span<const float> importance,
                    ConstFloatMatrix candidates,
                    std::span<double> sums,
                    std::span<const double> row_weights) {
  const std::size_t blocks = values.cols / kMxBlock;
  const std::size_t table = candidates.rows * candidates.cols;
  in_pieces(
      context,
      values.rows,
      {values.cols * lane_bytes_each(context, values.data) +
           (sums.size() + (row_weights.empty() ? 0 : 1)) * sizeof(double),
       2 * table * sizeof(float) + importance.size_bytes() + sums.size_bytes(),
       std::max(values.cols, sums.size()),
       kMxCurveRows},
      [&](std::size_t begin, std::size_t count) {
        Call call(context, "measuring candidates");
        const float* const tried = call.in(candidates);
        auto* const weights = call.scratch<float>(table);
        call.launch(
            CurveWeightsBody{call.in(importance), tried, static_cast<Index>(values.cols), weights},
            table);
        auto* const errors = call.scratch<double>(sums.size() * count);
        for_element(spec.element, [&](auto element) {
          call.launch(MxCurveBody<element()>{call.in(rows_of(values, begin, count)),
                                             tried,
                                             weights,
                                             call.in(rows_if_any(row_weights, 1, begin, count)),
                                             static_cast<Index>(count),
                                             static_cast<Index>(values.cols),
                                             static_cast<Index>(candidates.rows),
                                             spec.scale_rule,
                                             spec.ties,
                                             errors},
                      blocks * count);
        });
        call.launch(SumCurveBody{errors, static_cast<Index>(count), call.change(sums)},
                    sums.size());
        call.finish();
      });
}

}  // namespace quantmill::gpu
