#include "pipeline/scheme_error_curve.h"

#include <algorithm>
#include <functional>

#include "kernels/compare.h"
#include "kernels/scale.h"

namespace quantmill {

SchemeErrorCurve::SchemeErrorCurve(const Context& context, Scheme scheme, const Recipe& recipe)
    : context_(context), scheme_(scheme), layout_(recipe.layout), codec_(context, scheme, recipe) {}

void SchemeErrorCurve::add(ConstFloatMatrix values,
                           std::span<const float> importance,
                           ConstFloatMatrix candidates,
                           std::span<double> sums) {
  const std::size_t size = values.rows * values.cols;
  const std::span<const float> all(values.data, size);
  parts_.clear();
  std::vector<std::span<std::byte>> parts;
  for (const StoredPart& part :
       stored_parts(scheme_, layout_, "weight", values.rows, values.cols)) {
    std::uint64_t bits = dtype_bits(part.dtype);
    for (const std::uint64_t extent : part.shape) {
      bits *= extent;
    }
    parts_.emplace_back(bits / 8);
  }
  for (std::vector<std::byte>& part : parts_) {
    parts.emplace_back(part);
  }
  weighted_.assign(all.begin(), all.end());
  scale_matrix(
      context_, FloatMatrix{weighted_.data(), values.rows, values.cols}, {.columns = importance});
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::span<const float> s = candidates.row(i);
    back_.resize(s.size());
    std::ranges::transform(s, back_.begin(), [](float value) { return 1 / value; });
    scaled_.assign(all.begin(), all.end());
    const FloatMatrix scaled{scaled_.data(), values.rows, values.cols};
    scale_matrix(context_, scaled, {.columns = s});
    folded_importance_.resize(s.size());
    std::ranges::transform(importance, back_, folded_importance_.begin(), std::multiplies());
    codec_.encode(
        ConstFloatMatrix(scaled_.data(), values.rows, values.cols), parts, folded_importance_);
    codec_.decode(parts, scaled);
    scale_matrix(context_, scaled, {.columns = back_});
    scale_matrix(context_, scaled, {.columns = importance});
    ErrorSums errors;
    add_errors(context_,
               ConstFloatMatrix(scaled_.data(), values.rows, values.cols),
               ConstFloatMatrix(weighted_.data(), values.rows, values.cols),
               errors);
    sums[i] += errors.squared_error;
  }
}

}  // namespace quantmill
