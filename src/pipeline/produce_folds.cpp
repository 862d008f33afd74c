// RowProducer's scaling of rows.

#include <span>

#include "kernels/convert.h"
#include "kernels/scale.h"
#include "pipeline/produce.h"

namespace quantmill {

void RowProducer::choose_factors(const TensorWork& work) {
  if (factors_of_ != work.tensor) {
    factors_of_ = work.tensor;
    factors_ = factors_of(plan_, folds_, work.tensor);
    folded_importance_.clear();
    if (work.is_quantized()) {
      folded_importance_ = importance_.of(work.tensor);
    }
    for (std::size_t c = 0; !factors_.columns.empty() && c < folded_importance_.size(); ++c) {
      folded_importance_[c] /= factors_.columns[c];
    }
  }
}

void RowProducer::fold(const TensorWork& work, std::uint64_t first_row, FloatMatrix values) {
  if (factors_.columns.empty() && factors_.row_divisors.empty()) {
    return;
  }
  const std::span<const float> columns(factors_.columns);
  const std::span<const float> divisors(factors_.row_divisors);
  if (plan_.architecture.tensors[work.tensor].transposed && !work.is_quantized()) {
    scale_matrix(context_,
                 values,
                 {.rows = columns.empty() ? columns : columns.subspan(first_row, values.rows),
                  .column_divisors = divisors});
    return;
  }
  row_divisors_.clear();
  for (std::uint64_t row = first_row; !divisors.empty() && row < first_row + values.rows; ++row) {
    row_divisors_.push_back(divisors[work.is_quantized() ? work.source_rows.row(row) : row]);
  }
  if (plan_.recipe.compat != Compat::kSeed) {
    scale_matrix(context_, values, {.columns = columns, .row_divisors = row_divisors_});
    return;
  }
  for (const MatrixFactors& side :
       {MatrixFactors{.columns = columns}, MatrixFactors{.row_divisors = row_divisors_}}) {
    if (!side.columns.empty() || !side.row_divisors.empty()) {
      scale_matrix(context_, values, side);
      round_to_bf16(values);
    }
  }
}

void RowProducer::round_to_bf16(FloatMatrix values) {
  rounded_.resize(values.rows * values.cols * 2);
  const std::span<std::byte> rounded(rounded_.data(), rounded_.size());
  (void)encode_from_float(context_, values, DType::kBf16, rounded);
  (void)decode_to_float(context_, DType::kBf16, rounded, values);
}

void RowProducer::fold_norm_weight(const WriteTask& task, const Emit& emit) {
  const TensorWork& work = plan_.tensors[task.tensor];
  std::vector<float> weight = folds_[plan_.folds[work.tensor].rows.front()].norm_weight;
  if (weight.empty()) {
    weight = read_floats(
        context_, checkpoint_, plan_.architecture, plan_.architecture.tensors[work.tensor]);
  }
  encoded_.resize(weight.size() * dtype_bits(work.stored) / 8);
  (void)encode_from_float(
      context_, ConstFloatMatrix(weight.data(), 1, weight.size()), work.stored, encoded_);
  emit(work.parts[0].shard, work.parts[0].file_offset, encoded_);
}

}  // namespace quantmill
