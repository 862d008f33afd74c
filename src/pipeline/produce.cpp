#include "pipeline/produce.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

#include "kernels/convert.h"
#include "kernels/mx.h"
#include "kernels/scale.h"
#include "pipeline/weight_rows.h"

namespace quantmill {
namespace {

// Floats worked on at a time: they stay in the second-level cache between steps.
constexpr std::uint64_t kWorkElements = std::uint64_t{1} << 15;

MxSpec spec_of(const Recipe& recipe) {
  MxSpec spec;
  spec.scale_rule = recipe.scale_rule;
  spec.ties = recipe.compat == Compat::kSeed ? TieRule::kSeed : TieRule::kEven;
  return spec;
}

std::span<std::uint8_t> as_codes(std::span<std::byte> bytes) {
  return {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()};
}

// Bytes that a row takes in the buffers: as read and as written.
std::uint64_t row_buffer_bytes(const TensorWork& work, DType source) {
  return work.cols * (dtype_bits(source) + dtype_bits(work.stored)) / 8;
}

DType source_dtype(const Checkpoint& checkpoint, const Plan& plan, const TensorWork& work) {
  return checkpoint.tensors()[plan.architecture.tensors[work.tensor].stored].entry.dtype;
}

}  // namespace

RowProducer::RowProducer(const Context& context,
                         const Checkpoint& checkpoint,
                         const Plan& plan,
                         const std::vector<ActivationFold>& folds,
                         std::uint64_t buffer_bytes)
    : context_(context),
      checkpoint_(checkpoint),
      plan_(plan),
      folds_(folds),
      buffer_bytes_(buffer_bytes) {}

std::uint64_t RowProducer::smallest_buffer_bytes(const Plan& plan, const Checkpoint& checkpoint) {
  std::uint64_t widest = 1 << 16;
  for (const TensorWork& work : plan.tensors) {
    if (work.action != Action::kCopy) {
      widest = std::max(widest,
                        row_buffer_bytes(work, source_dtype(checkpoint, plan, work)) +
                            2 * sizeof(float) * work.cols);
    }
  }
  return widest;
}

void RowProducer::produce(const WriteTask& task, const Emit& emit, ErrorSums& errors) {
  switch (plan_.tensors[task.tensor].action) {
    case Action::kCopy:
      copy(task, emit);
      break;
    case Action::kFoldNorm:
      fold_norm_weight(task, emit);
      break;
    case Action::kFoldLinear:
    case Action::kQuantize:
      fold_rows(task, emit, errors);
      break;
  }
}

void RowProducer::copy(const WriteTask& task, const Emit& emit) {
  const TensorWork& work = plan_.tensors[task.tensor];
  const std::uint64_t piece = std::max<std::uint64_t>(1, buffer_bytes_);
  for (std::uint64_t begin = task.begin; begin < task.end; begin += piece) {
    stored_.resize(std::min(piece, task.end - begin));
    read_stored(checkpoint_, plan_.architecture.tensors[work.tensor], begin, stored_);
    emit(work.weight.shard, work.weight.file_offset + begin, stored_);
  }
}

void RowProducer::fold_norm_weight(const WriteTask& task, const Emit& emit) {
  const TensorWork& work = plan_.tensors[task.tensor];
  std::vector<float> weight = folds_[plan_.folds[work.tensor].rows.front()].norm_weight;
  if (weight.empty()) {
    weight = read_floats(context_, checkpoint_, plan_.architecture.tensors[work.tensor]);
  }
  encoded_.resize(weight.size() * dtype_bits(work.stored) / 8);
  (void)encode_from_float(
      context_, ConstFloatMatrix(weight.data(), 1, weight.size()), work.stored, encoded_);
  emit(work.weight.shard, work.weight.file_offset, encoded_);
}

void RowProducer::fold_rows(const WriteTask& task, const Emit& emit, ErrorSums& errors) {
  const TensorWork& work = plan_.tensors[task.tensor];
  const DType source = source_dtype(checkpoint_, plan_, work);
  choose_factors(work);
  const std::uint64_t weight_row_bytes = work.rows == 0 ? 0 : work.weight.size_bytes / work.rows;
  const std::uint64_t rows_held = std::max<std::uint64_t>(
      1, buffer_bytes_ / std::max<std::uint64_t>(1, row_buffer_bytes(work, source)));
  for (std::uint64_t begin = task.begin; begin < task.end; begin += rows_held) {
    const std::uint64_t rows = std::min(rows_held, task.end - begin);
    encode(work, begin, rows, errors);
    emit(work.weight.shard, work.weight.file_offset + begin * weight_row_bytes, encoded_);
    if (work.scales) {
      const std::uint64_t scale_row_bytes = work.cols / kMxBlock;
      emit(work.scales->shard,
           work.scales->file_offset + begin * scale_row_bytes,
           std::as_bytes(std::span<const std::uint8_t>(scales_)));
    }
  }
}

void RowProducer::encode(const TensorWork& work,
                         std::uint64_t begin,
                         std::uint64_t rows,
                         ErrorSums& errors) {
  const ModelTensor& tensor = plan_.architecture.tensors[work.tensor];
  const DType source = source_dtype(checkpoint_, plan_, work);
  const std::uint64_t source_row_bytes = work.cols * dtype_bits(source) / 8;
  stored_.resize(rows * source_row_bytes);
  if (work.is_quantized()) {
    read_rows(checkpoint_, tensor, work.source_rows, begin, 1, stored_);
  } else {
    read_stored(checkpoint_, tensor, begin * source_row_bytes, stored_);
  }
  const std::uint64_t weight_row_bytes = work.weight.size_bytes / work.rows;
  const std::uint64_t scale_row_bytes = work.scales ? work.cols / kMxBlock : 0;
  encoded_.resize(rows * weight_row_bytes);
  scales_.resize(rows * scale_row_bytes);
  const std::uint64_t rows_worked =
      std::max<std::uint64_t>(1, kWorkElements / std::max<std::uint64_t>(1, work.cols));
  for (std::uint64_t done = 0; done < rows; done += rows_worked) {
    const std::uint64_t now = std::min(rows_worked, rows - done);
    values_.resize(now * work.cols);
    const FloatMatrix values{values_.data(), now, work.cols};
    const auto bytes = std::span<const std::byte>(stored_).subspan(done * source_row_bytes,
                                                                   now * source_row_bytes);
    if (const auto bad = decode_to_float(context_, source, bytes, values)) {
      throw Error(
          ErrorCode::kInput,
          fmt::format(
              "tensor {}: row {}, column {} is {}; a damaged weight can't be quantized or folded. "
              "Fetch the checkpoint again, or leave the tensor as it is with --keep and "
              "--fold-scales off",
              work.name,
              begin + done + bad->row,
              bad->col,
              values.row(bad->row)[bad->col]));
    }
    fold(work, begin + done, values);
    const auto encoded =
        std::span(encoded_).subspan(done * weight_row_bytes, now * weight_row_bytes);
    if (!work.is_quantized()) {
      if (const auto lost = encode_from_float(context_, values, work.stored, encoded)) {
        throw Error(
            ErrorCode::kInput,
            fmt::format(
                "tensor {}: row {}, column {}: {} is beyond the range of {} after folding; use "
                "--fold-scales off or another --scheme",
                work.name,
                begin + done + lost->row,
                lost->col,
                values.row(lost->row)[lost->col],
                dtype_name(work.stored)));
      }
      continue;
    }
    const auto scales = std::span(scales_).subspan(done * scale_row_bytes, now * scale_row_bytes);
    mx_quantize(context_, spec_of(plan_.recipe), values, as_codes(encoded), scales);
    restored_.resize(values_.size());
    const FloatMatrix restored{restored_.data(), now, work.cols};
    mx_dequantize(context_, ElementFormat::kE2m1, as_codes(encoded), scales, restored);
    add_errors(context_, restored, values, errors);
  }
}

void RowProducer::choose_factors(const TensorWork& work) {
  if (factors_of_ != work.tensor) {
    factors_of_ = work.tensor;
    factors_ = factors_of(plan_, folds_, work.tensor);
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
  (void)encode_from_float(context_, values, DType::kBf16, rounded_);
  (void)decode_to_float(context_, DType::kBf16, rounded_, values);
}

}  // namespace quantmill
