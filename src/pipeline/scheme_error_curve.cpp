#include "pipeline/scheme_error_curve.h"

#include <algorithm>
#include <functional>

#include "kernels/compare.h"
#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "kernels/scale.h"

namespace quantmill {

SchemeErrorCurve::SchemeErrorCurve(const Context& context, Scheme scheme, const Recipe& recipe)
    : context_(context),
      scheme_(scheme),
      layout_(recipe.layout),
      codec_(context, scheme, recipe),
      weighted_(context),
      scaled_(context) {}

void SchemeErrorCurve::add(ConstFloatMatrix values,
                           std::span<const float> importance,
                           ConstFloatMatrix candidates,
                           std::span<double> sums) {
  const std::size_t size = values.rows * values.cols;
  const auto bytes = std::as_bytes(std::span(values.data, size));
  weighted_.resize(size);
  scaled_.resize(size);
  const FloatMatrix weighted{weighted_.data(), values.rows, values.cols};
  const FloatMatrix scaled{scaled_.data(), values.rows, values.cols};
  parts_.clear();
  std::vector<std::span<std::byte>> parts;
  for (const StoredPart& part :
       stored_parts(scheme_, layout_, "weight", values.rows, values.cols, false)) {
    std::uint64_t bits = dtype_bits(part.dtype);
    for (const std::uint64_t extent : part.shape) {
      bits *= extent;
    }
    parts_.emplace_back(bits / 8);
  }
  for (std::vector<std::byte>& part : parts_) {
    parts.emplace_back(part);
  }
  (void)decode_to_float(context_, DType::kF32, bytes, weighted);
  scale_matrix(context_, weighted, {.columns = importance});
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::span<const float> s = candidates.row(i);
    back_.resize(s.size());
    std::ranges::transform(s, back_.begin(), [](float value) { return 1 / value; });
    (void)decode_to_float(context_, DType::kF32, bytes, scaled);
    scale_matrix(context_, scaled, {.columns = s});
    if (has_tensor_scale(scheme_)) {
      float largest = 0;
      block_amax(context_, scaled, {values.rows, values.cols}, FloatMatrix{&largest, 1, 1});
      codec_.set_tensor_largest(largest);
    }
    folded_importance_.resize(s.size());
    std::ranges::transform(importance, back_, folded_importance_.begin(), std::multiplies());
    codec_.encode(scaled, parts, folded_importance_);
    codec_.decode(parts, scaled);
    scale_matrix(context_, scaled, {.columns = back_});
    scale_matrix(context_, scaled, {.columns = importance});
    ErrorSums errors;
    add_errors(context_, scaled, weighted, errors);
    sums[i] += errors.squared_error;
  }
}

}  // namespace quantmill
