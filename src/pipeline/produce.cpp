#include "pipeline/produce.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"

#include "kernels/convert.h"
#include "kernels/scale.h"

namespace quantmill {
namespace {

// Floats worked on at a time: they stay in the second-level cache between steps.
constexpr std::uint64_t kWorkElements = std::uint64_t{1} << 15;

const SourceWeight& source_of(const Plan& plan, const TensorWork& work) {
  return plan.architecture.weights[plan.architecture.tensors[work.tensor].stored];
}

// Rows that can't be worked on apart.
std::uint64_t rows_held_together(const TensorWork& work) {
  return work.is_quantized() ? std::min(work.rows, rows_together(work.scheme)) : 1;
}

// Bytes that a row takes in the buffers: as read and as written.
std::uint64_t row_buffer_bytes(const Plan& plan, const TensorWork& work) {
  const std::uint64_t written =
      work.is_quantized() ? work.cols * 2 : work.cols * dtype_bits(work.stored) / 8;
  return WeightReader::loaded_row_bytes(source_of(plan, work), work.cols) + written;
}

// compressed-tensors' weight_shape, I64 [2]: packed codes do not tell the columns.
void write_shape(const TensorWork& work, std::span<std::byte> bytes) {
  const std::array<std::uint64_t, 2> shape = {work.rows, work.cols};
  check_invariant(bytes.size() == sizeof shape, "a shape of another size");
  std::memcpy(bytes.data(), shape.data(), sizeof shape);
}

}  // namespace

RowProducer::RowProducer(const Context& context,
                         const Checkpoint& checkpoint,
                         const Plan& plan,
                         const std::vector<ActivationFold>& folds,
                         const ColumnImportance& importance,
                         std::uint64_t buffer_bytes)
    : context_(context),
      checkpoint_(checkpoint),
      plan_(plan),
      folds_(folds),
      importance_(importance),
      buffer_bytes_(buffer_bytes),
      reader_(context, checkpoint, plan.architecture) {
  for (const TensorWork& work : plan.tensors) {
    if (work.is_quantized()) {
      codecs_.try_emplace(work.scheme, context, work.scheme, plan.recipe);
    }
  }
}

std::uint64_t RowProducer::smallest_buffer_bytes(const Plan& plan) {
  std::uint64_t widest = 1 << 16;
  for (const TensorWork& work : plan.tensors) {
    if (work.action != Action::kCopy) {
      const std::uint64_t row = row_buffer_bytes(plan, work) + 2 * sizeof(float) * work.cols;
      widest = std::max(widest, row * rows_held_together(work));
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
    read_stored(
        checkpoint_, plan_.architecture, plan_.architecture.tensors[work.tensor], begin, stored_);
    emit(work.parts[0].shard, work.parts[0].file_offset + begin, stored_);
  }
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

void RowProducer::fold_rows(const WriteTask& task, const Emit& emit, ErrorSums& errors) {
  const TensorWork& work = plan_.tensors[task.tensor];
  choose_factors(work);
  const std::uint64_t together = rows_held_together(work);
  const std::uint64_t fitting =
      buffer_bytes_ / std::max<std::uint64_t>(1, row_buffer_bytes(plan_, work));
  const std::uint64_t rows_held = std::max(together, fitting / together * together);
  for (std::uint64_t begin = task.begin; begin < task.end; begin += rows_held) {
    const std::uint64_t end = std::min(begin + rows_held, task.end);
    encode(work, begin, end, errors);
    for (std::size_t part = 0; part < work.parts.size(); ++part) {
      const OutputPlace& place = work.parts[part];
      if (!encoded_parts_[part].empty()) {
        emit(place.shard,
             place.file_offset + place.rows_before(begin) * place.row_bytes,
             encoded_parts_[part]);
      }
    }
  }
}

void RowProducer::load(const TensorWork& work, std::uint64_t begin, std::uint64_t rows) {
  const ModelTensor& tensor = plan_.architecture.tensors[work.tensor];
  const SourceWeight& source = source_of(plan_, work);
  if (work.is_quantized()) {
    reader_.load(tensor, work.source_rows, begin, rows);
  } else if (!source.is_plain()) {
    reader_.load_stored(tensor, begin, rows);
  } else {
    const std::uint64_t row_bytes = work.cols * dtype_bits(source.entry.dtype) / 8;
    stored_.resize(rows * row_bytes);
    read_stored(checkpoint_, plan_.architecture, tensor, begin * row_bytes, stored_);
  }
}

// Loaded rows from number `first` as floats, folded. `begin`: the work's row number of row 0.
void RowProducer::decode(const TensorWork& work,
                         std::uint64_t begin,
                         std::uint64_t first,
                         FloatMatrix values) {
  const SourceWeight& source = source_of(plan_, work);
  const bool is_linear = work.is_quantized() || !source.is_plain();
  const std::uint64_t row_bytes = work.cols * dtype_bits(source.entry.dtype) / 8;
  const auto bad = is_linear ? reader_.decode(first, values)
                             : decode_to_float(context_,
                                               source.entry.dtype,
                                               std::span<const std::byte>(stored_).subspan(
                                                   first * row_bytes, values.rows * row_bytes),
                                               values);
  if (bad) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "tensor {}: row {}, column {} is {}; a damaged weight can't be quantized or folded. "
            "Fetch the checkpoint again, or leave the tensor as it is with --keep and "
            "--fold-scales off",
            work.name,
            begin + first + bad->row,
            bad->col,
            values.row(bad->row)[bad->col]));
  }
  fold(work, begin + first, values);
}

void RowProducer::encode(const TensorWork& work,
                         std::uint64_t begin,
                         std::uint64_t end,
                         ErrorSums& errors) {
  const std::uint64_t rows = end - begin;
  load(work, begin, rows);
  encoded_parts_.resize(std::max(encoded_parts_.size(), work.parts.size()));
  if (work.copies_codes) {
    const auto copy = [&](std::span<const std::byte> bytes, std::vector<std::byte>& part) {
      part.assign(bytes.begin(), bytes.end());
    };
    copy(reader_.stored_codes(), encoded_parts_[0]);
    copy(reader_.stored_scales(), encoded_parts_[1]);
    return;
  }
  for (std::size_t part = 0; part < work.parts.size(); ++part) {
    const OutputPlace& place = work.parts[part];
    encoded_parts_[part].resize((place.rows_before(end) - place.rows_before(begin)) *
                                place.row_bytes);
  }
  const std::uint64_t together = rows_held_together(work);
  const std::uint64_t fitting = kWorkElements / std::max<std::uint64_t>(1, work.cols);
  const std::uint64_t rows_worked = std::max(together, fitting / together * together);
  for (std::uint64_t done = 0; done < rows; done += rows_worked) {
    const std::uint64_t now = std::min(rows_worked, rows - done);
    values_.resize(now * work.cols);
    const FloatMatrix values{values_.data(), now, work.cols};
    decode(work, begin, done, values);
    std::vector<std::span<std::byte>> parts;
    for (std::size_t part = 0; part < work.parts.size(); ++part) {
      const OutputPlace& place = work.parts[part];
      const std::uint64_t first = place.rows_before(begin + done) - place.rows_before(begin);
      const std::uint64_t last = place.rows_before(begin + done + now) - place.rows_before(begin);
      parts.push_back(std::span(encoded_parts_[part])
                          .subspan(first * place.row_bytes, (last - first) * place.row_bytes));
    }
    if (!work.is_quantized()) {
      store(work, begin + done, values, parts[0]);
      continue;
    }
    SchemeCodec& codec = codecs_.at(work.scheme);
    codec.encode(values, parts, folded_importance_);
    if (parts.size() > 2 && !parts[2].empty()) {
      write_shape(work, parts[2]);
    }
    restored_.resize(values_.size());
    const FloatMatrix restored{restored_.data(), now, work.cols};
    codec.decode(parts, restored);
    add_errors(context_, restored, values, errors);
  }
}

void RowProducer::store(const TensorWork& work,
                        std::uint64_t first_row,
                        ConstFloatMatrix values,
                        std::span<std::byte> stored) {
  if (const auto lost = encode_from_float(context_, values, work.stored, stored)) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("tensor {}: row {}, column {}: {} is beyond the range of {} after folding; use "
                    "--fold-scales off or another --scheme",
                    work.name,
                    first_row + lost->row,
                    lost->col,
                    values.row(lost->row)[lost->col],
                    dtype_name(work.stored)));
  }
}

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
  (void)encode_from_float(context_, values, DType::kBf16, rounded_);
  (void)decode_to_float(context_, DType::kBf16, rounded_, values);
}

}  // namespace quantmill
