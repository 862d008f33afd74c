#include "pipeline/weight_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/work_times.h"
#include "kernels/codec.h"
#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "kernels/int4.h"
#include "kernels/int4_pack.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"
#include "pipeline/turned_codes.h"

namespace quantmill {
namespace {

std::uint64_t code_row_bytes(const SourceWeight& weight, std::uint64_t cols) {
  switch (weight.encoding) {
    case Encoding::kPlain:
      return cols * dtype_bits(weight.entry.dtype) / 8;
    case Encoding::kFp8:
    case Encoding::kInt8:
      return cols;
    case Encoding::kMx:
      return mx_packed_bytes(weight.element, cols);
    case Encoding::kNvfp4:
      return cols / 2;
    case Encoding::kPackedInt:
      return cols * weight.packing.bits / 8;
  }
  return 0;
}

std::uint64_t num_scales_of_row(const SourceWeight& weight, std::uint64_t cols) {
  if (weight.encoding == Encoding::kMx) {
    return cols / kMxBlock;
  }
  const std::uint64_t block = weight.encoding == Encoding::kNvfp4 ? kNvfp4Block : weight.block_cols;
  return (cols + block - 1) / block;
}

std::span<const std::uint8_t> as_codes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

// Reads rows of `row_bytes` each, which start at byte `base` of a stored tensor; rows that follow
// each other at once.
void read_runs(const Checkpoint& checkpoint,
               const SourceTensor& source,
               std::uint64_t base,
               std::uint64_t row_bytes,
               std::span<const std::uint64_t> rows,
               std::vector<std::byte>& bytes) {
  bytes.resize(rows.size() * row_bytes);
  for (std::size_t i = 0; i < rows.size();) {
    std::size_t run = 1;
    while (i + run < rows.size() && rows[i + run] == rows[i] + run) {
      ++run;
    }
    checkpoint.read(source,
                    base + rows[i] * row_bytes,
                    std::span(bytes).subspan(i * row_bytes, run * row_bytes));
    i += run;
  }
}

// As decode_to_float: `from` may be `to` itself, and lie on a GPU.
std::optional<MatrixPosition> copy_floats(const Context& context,
                                          std::span<const float> from,
                                          FloatMatrix to) {
  return decode_to_float(context, DType::kF32, std::as_bytes(from), to);
}

}  // namespace

RowRange all_rows(const ModelTensor& tensor) {
  return {0, 1, tensor.out_features(), tensor.out_features()};
}

void read_stored(const Checkpoint& checkpoint,
                 const ResolvedArchitecture& architecture,
                 const ModelTensor& tensor,
                 std::uint64_t begin,
                 std::span<std::byte> bytes) {
  const SourceWeight& weight = architecture.weights[tensor.stored];
  check_invariant(weight.is_plain(), "codes can't be read as elements");
  const std::uint64_t slice_bytes = tensor.num_elements() * dtype_bits(weight.entry.dtype) / 8;
  checkpoint.read(
      checkpoint.tensors()[weight.codes], tensor.slice.value_or(0) * slice_bytes + begin, bytes);
}

WeightReader::WeightReader(const Context& context,
                           const Checkpoint& checkpoint,
                           const ResolvedArchitecture& architecture)
    : context_(context), checkpoint_(checkpoint), architecture_(architecture) {}

std::uint64_t WeightReader::loaded_row_bytes(const SourceWeight& weight, std::uint64_t cols) {
  return code_row_bytes(weight, cols) +
         (weight.is_plain() ? 0 : num_scales_of_row(weight, cols) * (sizeof(float) + 4)) +
         (weight.turned ? cols * sizeof(float) : 0);
}

void WeightReader::choose(const ModelTensor& tensor) {
  values_.clear();
  if (tensor_ != &tensor) {
    tensor_ = &tensor;
    weight_ = &architecture_.weights[tensor.stored];
    load_global_scale();
    load_zero_points();
    column_groups_ = weight_->column_groups ? read_column_groups(checkpoint_, *weight_)
                                            : std::vector<std::uint32_t>();
  }
}

void WeightReader::load(const ModelTensor& tensor,
                        const RowRange& rows,
                        std::uint64_t begin,
                        std::uint64_t count) {
  std::vector<std::uint64_t> wanted;
  for (std::uint64_t i = 0; i < count; ++i) {
    wanted.push_back(rows.row(begin + i));
  }
  load(tensor, wanted);
}

void WeightReader::load(const ModelTensor& tensor, std::span<const std::uint64_t> rows) {
  choose(tensor);
  if (tensor.transposed && weight_->is_plain()) {
    load_columns(rows);
    return;
  }
  check_invariant(tensor.transposed == weight_->is_transposed_linear(),
                  "rows of codes are rows of a linear");
  if (weight_->turned && weight_->encoding == Encoding::kPackedInt) {
    load_turned_integers(rows);
    return;
  }
  load_codes(rows);
  if (!weight_->is_plain()) {
    load_scales(rows);
    if (is_integer(weight_->encoding)) {
      unpack(rows);
    }
  }
}

void WeightReader::expect(const ModelTensor& tensor,
                          const RowRange& rows,
                          std::uint64_t begin,
                          std::uint64_t count) const {
  const SourceWeight& weight = architecture_.weights[tensor.stored];
  const std::uint64_t first = rows.row(begin);
  if (tensor.transposed || weight.turned || rows.row(begin + count - 1) != first + count - 1) {
    return;
  }
  const std::uint64_t row_bytes = code_row_bytes(weight, tensor.in_features());
  const std::uint64_t base = tensor.slice.value_or(0) * tensor.out_features() * row_bytes;
  checkpoint_.expect_read(
      checkpoint_.tensors()[weight.codes], base + first * row_bytes, count * row_bytes);
}

void WeightReader::load_stored(const ModelTensor& tensor,
                               std::uint64_t begin,
                               std::uint64_t count) {
  choose(tensor);
  if (!weight_->is_transposed_linear()) {
    load(tensor, all_rows(tensor), begin, count);
    return;
  }
  values_.resize(count * tensor.out_features());
  read_turned_mx(context_,
                 checkpoint_,
                 *weight_,
                 tensor.slice.value_or(0),
                 tensor.in_features(),
                 begin,
                 FloatMatrix{values_.data(), count, tensor.out_features()});
}

void WeightReader::load_codes(std::span<const std::uint64_t> rows) {
  const std::uint64_t row_bytes = code_row_bytes(*weight_, tensor_->in_features());
  const std::uint64_t slice_bytes = tensor_->out_features() * row_bytes;
  read_runs(checkpoint_,
            checkpoint_.tensors()[weight_->codes],
            tensor_->slice.value_or(0) * slice_bytes,
            row_bytes,
            rows,
            codes_);
}

// Rows of a matrix that is stored as [in, out] are its columns: the stretch from the first to the
// last of them is read from every stored row.
void WeightReader::load_columns(std::span<const std::uint64_t> rows) {
  const std::uint64_t element = dtype_bits(weight_->entry.dtype) / 8;
  const std::uint64_t in = tensor_->in_features();
  codes_.resize(rows.size() * in * element);
  if (rows.empty()) {
    return;
  }
  const auto [first, last] = std::minmax_element(rows.begin(), rows.end());
  std::vector<std::byte> stretch((*last - *first + 1) * element);
  for (std::uint64_t feature = 0; feature < in; ++feature) {
    read_stored(checkpoint_,
                architecture_,
                *tensor_,
                (feature * tensor_->out_features() + *first) * element,
                stretch);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      copy_bytes(
          &codes_[(i * in + feature) * element], &stretch[(rows[i] - *first) * element], element);
    }
  }
}

void WeightReader::load_scales(std::span<const std::uint64_t> rows) {
  const SourceTensor& source = checkpoint_.tensors()[*weight_->scales];
  const std::uint64_t num_scales = num_scales_of_row(*weight_, tensor_->in_features());
  const std::uint64_t row_bytes = num_scales * dtype_bits(source.entry.dtype) / 8;
  const std::uint64_t block = weight_->block_rows;
  const std::uint64_t slice_rows = (tensor_->out_features() + block - 1) / block;
  std::vector<std::uint64_t> block_rows;
  for (const std::uint64_t row : rows) {
    block_rows.push_back(row / block);
  }
  read_runs(checkpoint_,
            source,
            tensor_->slice.value_or(0) * slice_rows * row_bytes,
            row_bytes,
            block_rows,
            scale_bytes_);
  if (weight_->encoding != Encoding::kMx && weight_->encoding != Encoding::kNvfp4) {
    scales_ = decode_scales(source.entry.dtype, scale_bytes_, source.entry.name);
  }
}

// Of the whole weight: they are small, and packed across rows.
void WeightReader::load_zero_points() {
  all_zero_points_.clear();
  if (!weight_->zero_points || weight_->turned) {
    return;
  }
  check_invariant(!tensor_->slice, "zero points of slices are not read");
  const SourceTensor& source = checkpoint_.tensors()[*weight_->zero_points];
  std::vector<std::byte> packed(source.entry.size_bytes());
  checkpoint_.read(source, 0, packed);
  const std::uint64_t groups = num_scales_of_row(*weight_, tensor_->in_features());
  all_zero_points_.resize(tensor_->out_features() * groups);
  int_unpack_rows(context_,
                  weight_->packing,
                  as_codes(packed),
                  tensor_->out_features(),
                  groups,
                  all_zero_points_);
}

// Rows of the weight are columns of codes, scales and zero points.
void WeightReader::load_turned_integers(std::span<const std::uint64_t> rows) {
  const std::vector<SourceTensor>& tensors = checkpoint_.tensors();
  read_integer_columns(context_,
                       checkpoint_,
                       tensors[weight_->codes],
                       weight_->packing,
                       weight_->packs_rows,
                       rows,
                       integers_);
  const SourceTensor& scales = tensors[*weight_->scales];
  read_columns(checkpoint_, scales, rows, scale_bytes_);
  scales_ = decode_scales(scales.entry.dtype, scale_bytes_, scales.entry.name);
  zero_points_.clear();
  if (!weight_->zero_points) {
    return;
  }
  read_integer_columns(context_,
                       checkpoint_,
                       tensors[*weight_->zero_points],
                       weight_->packing,
                       false,
                       rows,
                       zero_points_);
  if (weight_->adds_one_to_zero_points) {
    const int smallest = int_smallest(weight_->packing.bits);
    const int largest = int_largest(weight_->packing.bits);
    for (std::int8_t& zero_point : zero_points_) {
      zero_point = static_cast<std::int8_t>(zero_point == largest ? smallest : zero_point + 1);
    }
  }
}

// The codes of loaded rows, one a byte, and their zero points.
void WeightReader::unpack(std::span<const std::uint64_t> rows) {
  const std::uint64_t cols = tensor_->in_features();
  integers_.resize(rows.size() * cols);
  if (weight_->encoding == Encoding::kInt8) {
    copy_bytes(integers_.data(), codes_.data(), integers_.size());
  } else {
    int_unpack_columns(context_, weight_->packing, as_codes(codes_), rows.size(), cols, integers_);
  }
  zero_points_.clear();
  const std::uint64_t groups = num_scales_of_row(*weight_, cols);
  for (std::size_t i = 0; !all_zero_points_.empty() && i < rows.size(); ++i) {
    const auto first = all_zero_points_.begin() + static_cast<std::ptrdiff_t>(rows[i] * groups);
    zero_points_.insert(zero_points_.end(), first, first + static_cast<std::ptrdiff_t>(groups));
  }
}

void WeightReader::load_global_scale() {
  global_scale_ = 1;
  if (!weight_->global_scale) {
    return;
  }
  const SourceTensor& source = checkpoint_.tensors()[*weight_->global_scale];
  std::vector<std::byte> bytes(source.entry.size_bytes());
  checkpoint_.read(source, 0, bytes);
  const std::vector<float> values = decode_scales(source.entry.dtype, bytes, source.entry.name);
  global_scale_ = values.at(values.size() > 1 ? tensor_->slice.value_or(0) : 0);
}

std::vector<float> WeightReader::decode_scales(DType dtype,
                                               std::span<const std::byte> bytes,
                                               const std::string& name) const {
  std::vector<float> values(bytes.size() * 8 / dtype_bits(dtype));
  if (dtype == DType::kF8E8m0 || dtype == DType::kU8) {
    std::ranges::transform(as_codes(bytes), values.begin(), decode_e8m0);
  } else {
    (void)decode_to_float(context_, dtype, bytes, FloatMatrix{values.data(), 1, values.size()});
  }
  for (const float value : values) {
    if (!std::isfinite(value)) {
      throw Error(ErrorCode::kInput,
                  fmt::format("tensor {}: a scale is {}; the checkpoint is damaged", name, value));
    }
  }
  return values;
}

std::optional<MatrixPosition> WeightReader::decode(std::uint64_t first, FloatMatrix out) const {
  const WorkTimer timer(Work::kDecode);
  if (!values_.empty()) {
    return copy_floats(
        context_, std::span(values_).subspan(first * out.cols, out.rows * out.cols), out);
  }
  const std::uint64_t row_bytes = code_row_bytes(*weight_, out.cols);
  const std::uint64_t num_scales = num_scales_of_row(*weight_, out.cols);
  const auto codes = [&] {
    return std::span<const std::byte>(codes_).subspan(first * row_bytes, out.rows * row_bytes);
  };
  const auto bytes_of_scales = [&](std::uint64_t element_bytes) {
    const std::uint64_t size = num_scales * element_bytes;
    return as_codes(
        std::span<const std::byte>(scale_bytes_).subspan(first * size, out.rows * size));
  };
  const auto scales = [&] {
    return ConstFloatMatrix(&scales_[first * num_scales], out.rows, num_scales);
  };
  switch (weight_->encoding) {
    case Encoding::kPlain:
      return decode_to_float(context_, weight_->entry.dtype, codes(), out);
    case Encoding::kMx:
      mx_dequantize(context_, weight_->element, as_codes(codes()), bytes_of_scales(1), out);
      break;
    case Encoding::kNvfp4:
      return nvfp4_dequantize(context_,
                              as_codes(codes()),
                              bytes_of_scales(1),
                              {global_scale_,
                               weight_->divides_by_global_scale ? GlobalScaleUse::kDivides
                                                                : GlobalScaleUse::kMultiplies},
                              out);
    case Encoding::kFp8:
      return fp8_dequantize(
          context_, as_codes(codes()), scales(), {1, weight_->block_cols, 0}, out);
    case Encoding::kInt8:
    case Encoding::kPackedInt: {
      const auto of_rows = [&](const std::vector<std::int8_t>& values, std::uint64_t per_row) {
        return values.empty() ? std::span<const std::int8_t>()
                              : std::span(values).subspan(first * per_row, out.rows * per_row);
      };
      return int_dequantize(context_,
                            of_rows(integers_, out.cols),
                            scales(),
                            of_rows(zero_points_, num_scales),
                            column_groups_,
                            out);
    }
  }
  return copy_floats(context_, {out.data, out.rows * out.cols}, out);
}

}  // namespace quantmill
