#include "plan/source_bytes.h"

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/mx.h"
#include "plan/source_integers.h"

namespace quantmill {
namespace {

using Shape = std::vector<std::uint64_t>;

Shape with_last(Shape shape, std::uint64_t rows, std::uint64_t cols) {
  shape[shape.size() - 2] = rows;
  shape.back() = cols;
  return shape;
}

// ModelOpt stores scales of blocks as they divide the weight: [rows, 1, cols, 1].
Shape of_blocks(const Shape& scales) {
  const bool is_divided = scales.size() == 4 && scales[1] == 1 && scales[3] == 1;
  return is_divided ? Shape{scales[0], scales[2]} : scales;
}

void check_scale_type(const std::vector<SourceTensor>& stored, const SourceWeight& weight) {
  const DType dtype = stored[*weight.scales].entry.dtype;
  const bool is_known = dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16 ||
                        dtype == DType::kF8E8m0 || dtype == DType::kU8;
  if (!is_known) {
    fail_scales(stored, weight);
  }
}

}  // namespace

void describe_byte_codes(const std::vector<SourceTensor>& stored,
                         const CodeSettings& settings,
                         SourceWeight& weight) {
  const TensorEntry& scales = stored[*weight.scales].entry;
  const Shape& codes = weight.entry.shape;
  const std::uint64_t rows = codes[codes.size() - 2];
  const std::uint64_t cols = codes.back();
  const bool is_float = weight.entry.dtype == DType::kF8E4m3;
  if (is_float && scales.dtype == DType::kU8 &&
      scales.shape == with_last(codes, rows, cols / kMxBlock) && cols % kMxBlock == 0) {
    weight.encoding = Encoding::kMx;
    weight.element = ElementFormat::kE4m3;
    return;
  }
  weight.encoding = is_float ? Encoding::kFp8 : Encoding::kInt8;
  const std::uint64_t block_rows = settings.block_size[0];
  const std::uint64_t block_cols = settings.block_size[1];
  const Shape leading(codes.begin(), codes.end() - 2);
  Shape per_row = leading;
  per_row.push_back(rows);
  if (of_blocks(scales.shape) ==
      with_last(codes, divide_up(rows, block_rows), divide_up(cols, block_cols))) {
    weight.block_rows = block_rows;
    weight.block_cols = block_cols;
  } else if (scales.shape == per_row || scales.shape == with_last(codes, rows, 1)) {
    weight.block_cols = cols;
  } else if (scales.num_elements() == 1 && leading.empty()) {
    weight.block_rows = rows;
    weight.block_cols = cols;
  } else {
    fail_scales(stored, weight);
  }
  check_scale_type(stored, weight);
  if (weight.zero_points) {
    throw Error(ErrorCode::kInput,
                fmt::format("tensor {}: zero points beside codes of 8 bits are not known",
                            weight.entry.name));
  }
}

}  // namespace quantmill
