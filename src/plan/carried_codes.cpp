#include "plan/carried_codes.h"

namespace quantmill {
namespace {

bool holds_fp8(const SourceWeight& source, const RowRange& rows, Scheme scheme) {
  const std::vector<std::uint64_t>& shape = source.entry.shape;
  const std::uint64_t cols = shape.back();
  const bool by_tensor =
      shape.size() == 2 && source.block_rows == shape[0] && source.block_cols == cols;
  const bool by_channel = source.block_rows == 1 && source.block_cols == cols;
  const std::uint64_t block = rows_together(Scheme::kFp8Block);
  const bool by_block = source.block_rows == block && source.block_cols == block &&
                        rows.groups == 1 && rows.start % block == 0;
  return (scheme == Scheme::kFp8Tensor && by_tensor) ||
         (scheme == Scheme::kFp8Channel && by_channel) || (scheme == Scheme::kFp8Block && by_block);
}

bool holds_integers(const SourceWeight& source, Scheme scheme) {
  const bool is_int8 = scheme == Scheme::kInt8;
  const bool by_row = is_int8 || scheme == Scheme::kW8a16;
  const bool is_four = scheme == Scheme::kInt4G128 || scheme == Scheme::kInt4G32 ||
                       scheme == Scheme::kInt4AsymG128 || scheme == Scheme::kInt4AsymG32;
  if (!by_row && !is_four && scheme != Scheme::kW8a16G128) {
    return false;
  }
  const std::uint64_t bits = source.encoding == Encoding::kInt8 ? 8 : source.packing.bits;
  const std::uint64_t group = by_row ? source.entry.shape.back() : columns_together(scheme);
  const bool has_zero_points = source.zero_points && !source.zero_points_are_zero;
  // int8 has scales of F32, which can be any; the others BF16.
  return bits == (is_four ? 4U : 8U) && source.block_cols == group && !source.column_groups &&
         has_zero_points == is_asymmetric(scheme) &&
         (is_int8 || source.scale_dtype == DType::kBf16);
}

}  // namespace

bool holds_codes(const SourceWeight& source, const RowRange& rows, Scheme scheme) {
  if (scheme == Scheme::kSource) {
    return true;
  }
  switch (source.encoding) {
    case Encoding::kMx:
      return is_mx(scheme) && source.element == mx_element(scheme);
    case Encoding::kNvfp4:
      return scheme == Scheme::kNvfp4;
    case Encoding::kFp8:
      return holds_fp8(source, rows, scheme);
    case Encoding::kInt8:
    case Encoding::kPackedInt:
      return holds_integers(source, scheme);
    case Encoding::kPlain:
      break;
  }
  return false;
}

}  // namespace quantmill
