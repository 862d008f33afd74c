#include "pipeline/produce.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"

#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "pipeline/device_errors.h"

namespace quantmill {
namespace {

// values_ and restored_.
constexpr std::size_t kWorkBuffers = 2;

const SourceWeight& source_of(const Plan& plan, const TensorWork& work) {
  return plan.architecture.weights[plan.architecture.tensors[work.tensor].stored];
}

// Rows that can't be worked on apart.
std::uint64_t rows_held_together(const TensorWork& work) {
  return std::min(std::max<std::uint64_t>(1, work.rows), work.rows_together());
}

// Rows can't be encoded one after the other where a part's columns follow them.
bool is_turned(const TensorWork& work) {
  return std::ranges::any_of(work.parts,
                             [](const OutputPlace& place) { return place.stretches > 1; });
}

// Bytes that a row takes in the buffers: as read and as written, and as numbers if all rows are
// worked on at once.
std::uint64_t row_buffer_bytes(const Plan& plan, const TensorWork& work) {
  const std::uint64_t loaded = WeightReader::loaded_row_bytes(source_of(plan, work), work.cols);
  if (work.copies_codes && !work.targets.empty()) {
    return loaded + 2 * work.cols;  // one code a byte, and turned
  }
  if (work.copies_codes && is_integer(source_of(plan, work).encoding)) {
    return loaded + 4 * work.cols;  // one code a byte as read, as passed on and turned, and packed
  }
  const std::uint64_t written =
      (work.is_quantized() ? work.cols * 2 : work.cols * dtype_bits(work.stored) / 8) +
      (is_turned(work) ? 2 * sizeof(float) * work.cols : 0);
  // Codes are taken apart and turned.
  const std::uint64_t arranged = work.targets.empty() ? 0 : written + work.cols;
  return loaded + written + arranged;
}

void write_float(float value, std::span<std::byte> bytes) {
  check_invariant(bytes.size() == sizeof value, "a scale of another size");
  std::memcpy(bytes.data(), &value, sizeof value);
}

}  // namespace

RowProducer::RowProducer(const Context& context,
                         const Checkpoint& checkpoint,
                         const Plan& plan,
                         const std::vector<ActivationFold>& folds,
                         TensorRanges ranges,
                         const ColumnImportance& importance,
                         FeedbackFactors* feedback,
                         std::uint64_t buffer_bytes)
    : context_(context),
      checkpoint_(checkpoint),
      plan_(plan),
      folds_(folds),
      ranges_(std::move(ranges)),
      importance_(importance),
      feedback_(feedback),
      buffer_bytes_(buffer_bytes),
      reader_(context, checkpoint, plan.architecture),
      values_(context),
      restored_(context),
      rounded_(context) {
  for (const TensorWork& work : plan.tensors) {
    if (work.is_quantized()) {
      codecs_.try_emplace(work.scheme, context, work.scheme, plan.recipe);
    }
  }
}

std::uint64_t RowProducer::smallest_buffer_bytes(const Plan& plan) {
  std::uint64_t widest = 1 << 16;
  for (const TensorWork& work : plan.tensors) {
    if (work.action != Action::kCopy && work.action != Action::kKvScale) {
      const std::uint64_t row = row_buffer_bytes(plan, work) + 2 * sizeof(float) * work.cols;
      widest = std::max(widest, row * rows_held_together(work));
    }
  }
  return widest;
}

std::uint64_t RowProducer::held_bytes(const Plan& plan, std::uint64_t buffer_bytes) {
  std::uint64_t copied = 0;
  std::uint64_t worked = 0;
  for (const WriteTask& task : plan.write_tasks) {
    const TensorWork& work = plan.tensors[task.tensor];
    if (work.action == Action::kCopy || work.action == Action::kRearrange) {
      copied = std::max(copied, std::min(task.end - task.begin, buffer_bytes));
    } else if (work.action != Action::kKvScale) {
      const std::uint64_t rows = task.end - task.begin;
      const std::uint64_t row = row_buffer_bytes(plan, work);
      worked = std::max(worked, std::min(rows * row, std::max(row, buffer_bytes)));
    }
  }
  return copied + worked + 3 * sizeof(float) * work_elements({}, sizeof(float), kWorkBuffers);
}

void RowProducer::produce(const WriteTask& task, const Emit& emit, WorkErrors& errors) {
  with_tensor_name(plan_.tensors[task.tensor].name, [&] { produce_held(task, emit, errors); });
  give_back();
}

float RowProducer::measure(const WriteTask& task) {
  const float largest =
      with_tensor_name(plan_.tensors[task.tensor].name, [&] { return measure_held(task); });
  give_back();
  return largest;
}

// Other workers may need more of a GPU's memory than their share.
void RowProducer::give_back() {
  values_.give_back();
  restored_.give_back();
  rounded_.give_back();
}

void RowProducer::produce_held(const WriteTask& task, const Emit& emit, WorkErrors& errors) {
  switch (plan_.tensors[task.tensor].action) {
    case Action::kCopy:
      copy(task, emit);
      break;
    case Action::kRearrange:
      rearrange(task, emit);
      break;
    case Action::kFoldNorm:
      fold_norm_weight(task, emit);
      break;
    case Action::kKvScale:
      write_kv_scale(task, emit);
      break;
    case Action::kFoldLinear:
    case Action::kQuantize:
      fold_rows(task, emit, errors);
      break;
  }
}

void RowProducer::write_kv_scale(const WriteTask& task, const Emit& emit) {
  const OutputPlace& place = plan_.tensors[task.tensor].parts.front();
  encoded_.resize(sizeof(float));
  write_float(fp8_scale(ranges_.inputs[task.tensor], DType::kF32), encoded_);
  emit(place.shard, place.file_offset, encoded_);
}

std::uint64_t RowProducer::rows_held(const TensorWork& work) const {
  const std::uint64_t together = rows_held_together(work);
  std::uint64_t fitting = buffer_bytes_ / std::max<std::uint64_t>(1, row_buffer_bytes(plan_, work));
  if (context_.gpu != nullptr && is_turned(work)) {
    fitting = std::min(fitting, rows_worked(work, together));  // all are worked on at once
  }
  return std::max(together, fitting / together * together);
}

std::uint64_t RowProducer::rows_worked(const TensorWork& work, std::uint64_t together) const {
  const std::uint64_t fitting =
      work_elements(context_, sizeof(float), kWorkBuffers) / std::max<std::uint64_t>(1, work.cols);
  return std::max(together, fitting / together * together);
}

void RowProducer::emit_part(const OutputPlace& place,
                            std::uint64_t begin,
                            std::span<const std::byte> bytes,
                            const Emit& emit) {
  const std::uint64_t piece = bytes.size() / place.stretches;
  for (std::uint64_t stretch = 0; piece > 0 && stretch < place.stretches; ++stretch) {
    emit(place.shard,
         place.file_offset + stretch * (place.size_bytes / place.stretches) +
             place.rows_before(begin) * place.row_bytes,
         bytes.subspan(stretch * piece, piece));
  }
}

void RowProducer::fold_rows(const WriteTask& task, const Emit& emit, WorkErrors& errors) {
  const TensorWork& work = plan_.tensors[task.tensor];
  choose_factors(work);
  error_feedback_ = feedback_ != nullptr && feedback_->takes(work) && !carries(work)
                        ? feedback_->of(work, folds_)
                        : nullptr;
  const std::uint64_t held = rows_held(work);
  for (std::uint64_t begin = task.begin; begin < task.end; begin += held) {
    const std::uint64_t end = std::min(begin + held, task.end);
    encode(work, begin, end, errors);
    if (!work.targets.empty()) {
      arrange(work, begin, end, encoded_parts_[0], emit);
      continue;
    }
    for (std::size_t part = 0; part < work.parts.size(); ++part) {
      emit_part(work.parts[part], begin, encoded_parts_[part], emit);
    }
  }
}

void RowProducer::expect(const WriteTask& task) const {
  const TensorWork& work = plan_.tensors[task.tensor];
  if (work.is_quantized()) {
    reader_.expect(plan_.architecture.tensors[work.tensor],
                   work.source_rows,
                   task.begin,
                   task.end - task.begin);
  }
}

float RowProducer::measure_held(const WriteTask& task) {
  const TensorWork& work = plan_.tensors[task.tensor];
  choose_factors(work);
  float largest = 0;
  const std::uint64_t held = rows_held(work);
  const std::uint64_t worked = rows_worked(work, 1);
  for (std::uint64_t begin = task.begin; begin < task.end; begin += held) {
    const std::uint64_t end = std::min(begin + held, task.end);
    load(work, begin, end - begin);
    for (std::uint64_t row = begin; row < end; row += worked) {
      const std::uint64_t rows = std::min(worked, end - row);
      values_.resize(rows * work.cols);
      const FloatMatrix values{values_.data(), rows, work.cols};
      decode(work, begin, row - begin, values);
      float amax = 0;
      block_amax(context_, values, {rows, work.cols}, FloatMatrix{&amax, 1, 1});
      largest = std::max(largest, amax);
    }
  }
  return largest;
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
            element_at(context_, &values.row(bad->row)[bad->col])));
  }
  fold(work, begin + first, values);
}

void RowProducer::encode(const TensorWork& work,
                         std::uint64_t begin,
                         std::uint64_t end,
                         WorkErrors& errors) {
  const std::uint64_t rows = end - begin;
  load(work, begin, rows);
  encoded_parts_.resize(std::max(encoded_parts_.size(), work.parts.size()));
  if (work.copies_codes && !work.targets.empty()) {
    coded_.rows = rows;
    coded_.cols = work.cols;
    reader_.code(coded_);
    return;
  }
  for (std::size_t part = 0; part < work.parts.size(); ++part) {
    const OutputPlace& place = work.parts[part];
    encoded_parts_[part].resize((place.rows_before(end) - place.rows_before(begin)) *
                                place.stretches * place.row_bytes);
  }
  if (carries(work)) {
    copy_rows(work, begin, rows);
    return;
  }
  const std::uint64_t together =
      rows_held_together(work) * (error_feedback_ ? kGptqRowsTogether : 1);
  const std::uint64_t worked = is_turned(work) ? rows : rows_worked(work, together);
  for (std::uint64_t done = 0; done < rows; done += worked) {
    const std::uint64_t now = std::min(worked, rows - done);
    values_.resize(now * work.cols);
    const FloatMatrix values{values_.data(), now, work.cols};
    decode(work, begin, done, values);
    std::vector<std::span<std::byte>> parts;
    for (std::size_t part = 0; part < work.parts.size(); ++part) {
      const OutputPlace& place = work.parts[part];
      const std::uint64_t bytes = place.stretches * place.row_bytes;
      const std::uint64_t first = place.rows_before(begin + done) - place.rows_before(begin);
      const std::uint64_t last = place.rows_before(begin + done + now) - place.rows_before(begin);
      parts.push_back(
          std::span(encoded_parts_[part]).subspan(first * bytes, (last - first) * bytes));
    }
    if (work.is_quantized()) {
      quantize(work, values, parts, errors);
    } else {
      store(work, begin + done, values, parts[0]);
    }
  }
}

void RowProducer::quantize(const TensorWork& work,
                           ConstFloatMatrix values,
                           std::span<const std::span<std::byte>> parts,
                           WorkErrors& errors) {
  const auto index = static_cast<std::size_t>(&work - plan_.tensors.data());
  SchemeCodec& codec = codecs_.at(work.scheme);
  if (!ranges_.weights.empty()) {
    codec.set_tensor_largest(ranges_.weights[index]);
  }
  codec.encode(values, parts, folded_importance_, error_feedback_.get());
  write_beside(work, parts);
  restored_.resize(values_.size());
  const FloatMatrix restored{restored_.data(), values.rows, values.cols};
  codec.decode(parts, restored);
  add_errors(context_, restored, values, errors.plain);
  if (!folded_importance_.empty()) {
    add_errors(context_, restored, values, errors.weighted, folded_importance_);
  }
}

void RowProducer::write_beside(const TensorWork& work,
                               std::span<const std::span<std::byte>> parts) const {
  const auto index = static_cast<std::size_t>(&work - plan_.tensors.data());
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].empty()) {
      continue;  // it stands before the first rows
    }
    if (work.parts[part].kind == PartKind::kShape) {
      // compressed-tensors' weight_shape, I64 [2]: packed codes do not tell the columns.
      const std::array<std::uint64_t, 2> shape = {work.rows, work.cols};
      check_invariant(parts[part].size() == sizeof shape, "a shape of another size");
      std::memcpy(parts[part].data(), shape.data(), sizeof shape);
    } else if (work.parts[part].kind == PartKind::kInputScale) {
      write_float(input_scale(work.scheme, ranges_.inputs[index]), parts[part]);
    }
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
                    element_at(context_, &values.row(lost->row)[lost->col]),
                    dtype_name(work.stored)));
  }
}

}  // namespace quantmill
