#include "jobs/tensor_values.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "jobs/stored_numbers.h"
#include "kernels/convert.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kPieceElements = std::uint64_t{1} << 20;

[[noreturn]] void fail_not_found(const Checkpoint& checkpoint, const std::string& name) {
  std::string similar;
  int count = 0;
  for (const SourceTensor& tensor : checkpoint.tensors()) {
    if (!name.empty() && tensor.entry.name.find(name) != std::string::npos && ++count <= 5) {
      similar += (count == 1 ? "" : ", ") + tensor.entry.name;
    }
  }
  throw Error(ErrorCode::kInput,
              fmt::format("{} has no tensor '{}'{}",
                          checkpoint.folder().string(),
                          name,
                          count == 0 ? std::string("; run without --tensor to list them")
                                     : fmt::format("; names with this text in them: {}{}",
                                                   similar,
                                                   count > 5 ? " ..." : "")));
}

// The weights of a folder, or none if it does not make sense as a model.
std::vector<SourceWeight> weights_of(const Checkpoint& checkpoint) {
  try {
    std::error_code ignored;
    const bool has_config = std::filesystem::exists(checkpoint.folder() / "config.json", ignored);
    std::vector<SourceWeight> weights =
        find_weights(checkpoint.tensors(), has_config ? checkpoint.config_text() : "{}");
    for (SourceWeight& weight : weights) {
      if (weight.is_transposed_linear()) {  // shown as its codes lie
        std::swap(weight.entry.shape.back(), *(weight.entry.shape.end() - 2));
        weight.turned = false;
      }
    }
    return weights;
  } catch (const Error&) {
    return {};
  }
}

TensorValues describe(const Checkpoint& checkpoint,
                      const std::string& name,
                      std::size_t stored,
                      const SourceWeight* weight) {
  TensorValues tensor;
  tensor.name = name;
  if (weight != nullptr) {
    tensor.weight = *weight;
  }
  tensor.stored = &checkpoint.tensors()[stored];
  const TensorEntry& values = weight != nullptr ? weight->entry : tensor.stored->entry;
  tensor.shape = values.shape;
  tensor.cols = tensor.shape.empty() ? 1 : tensor.shape.back();
  tensor.rows = tensor.cols == 0 ? 0 : values.num_elements() / tensor.cols;
  return tensor;
}

std::string encoding_of(const SourceWeight& weight) {
  switch (weight.encoding) {
    case Encoding::kPlain:
      break;
    case Encoding::kFp8:
      return "FP8";
    case Encoding::kMx:
      return weight.element == ElementFormat::kE2m1   ? "MXFP4"
             : weight.element == ElementFormat::kE4m3 ? "MXFP8"
                                                      : "MXFP6";
    case Encoding::kNvfp4:
      return "NVFP4";
    case Encoding::kInt8:
      return "INT8";
    case Encoding::kPackedInt:
      return fmt::format("INT{}", weight.packing.bits);
  }
  return std::string(dtype_name(weight.entry.dtype));
}

}  // namespace

TensorValues find_values(const Checkpoint& checkpoint, const std::string& name) {
  for (const SourceWeight& weight : weights_of(checkpoint)) {
    if (!weight.is_plain() &&
        (weight.entry.name == name || checkpoint.tensors()[weight.codes].entry.name == name)) {
      return describe(checkpoint, name, weight.codes, &weight);
    }
  }
  const std::optional<std::size_t> found = checkpoint.find(name);
  if (!found) {
    fail_not_found(checkpoint, name);
  }
  return describe(checkpoint, name, *found, nullptr);
}

std::vector<TensorValues> all_values(const Checkpoint& checkpoint) {
  std::vector<TensorValues> tensors;
  for (const SourceWeight& weight : weights_of(checkpoint)) {
    tensors.push_back(describe(
        checkpoint, weight.entry.name, weight.codes, weight.is_plain() ? nullptr : &weight));
  }
  for (std::size_t index = 0; tensors.empty() && index < checkpoint.tensors().size(); ++index) {
    tensors.push_back(describe(checkpoint, checkpoint.tensors()[index].entry.name, index, nullptr));
  }
  return tensors;
}

std::string format_name(const TensorValues& tensor) {
  return tensor.weight ? encoding_of(*tensor.weight)
                       : std::string(dtype_name(tensor.stored->entry.dtype));
}

ValueReader::ValueReader(const Checkpoint& checkpoint, const TensorValues& tensor)
    : checkpoint_(checkpoint),
      tensor_(tensor),
      context_(make_context("cpu")),
      reader_(context_, checkpoint, model_) {
  if (tensor.weight) {
    // One matrix, whatever the dimensions before its columns.
    model_.weights = {*tensor.weight};
    matrix_.role = TensorRole::kLinear;
    matrix_.shape = {tensor.rows, tensor.cols};
  }
}

std::span<const double> ValueReader::read(const RowSpan& rows) {
  const std::uint64_t count = rows.end - rows.begin;
  values_.resize(narrow<std::size_t>(count * tensor_.cols));
  if (values_.empty()) {
    return values_;
  }
  const DType dtype = tensor_.stored->entry.dtype;
  if (!tensor_.weight) {
    read_stored(rows);
    if (!is_convertible(dtype)) {
      load_numbers(tensor_.stored->entry, stored_, values_);
      return values_;
    }
  }
  floats_.resize(values_.size());
  const FloatMatrix matrix{
      floats_.data(), narrow<std::size_t>(count), narrow<std::size_t>(tensor_.cols)};
  if (tensor_.weight) {
    reader_.load(matrix_, all_rows(matrix_), rows.begin, count);
    static_cast<void>(reader_.decode(0, matrix));
  } else {
    static_cast<void>(decode_to_float(context_, dtype, stored_, matrix));
  }
  std::copy(floats_.begin(), floats_.end(), values_.begin());
  return values_;
}

void ValueReader::read_codes(const RowSpan& rows, CodedRows& coded) {
  coded.rows = narrow<std::size_t>(rows.end - rows.begin);
  coded.cols = narrow<std::size_t>(tensor_.cols);
  reader_.load(matrix_, all_rows(matrix_), rows.begin, coded.rows);
  reader_.code(coded);
}

void ValueReader::read_stored(const RowSpan& rows) {
  const std::uint64_t row_bytes = tensor_.stored->entry.size_bytes() / tensor_.rows;
  stored_.resize(narrow<std::size_t>((rows.end - rows.begin) * row_bytes));
  checkpoint_.read(*tensor_.stored, rows.begin * row_bytes, stored_);
}

std::uint64_t rows_of_piece(const TensorValues& tensor) {
  return std::max<std::uint64_t>(1, kPieceElements / std::max<std::uint64_t>(tensor.cols, 1));
}

}  // namespace quantmill
