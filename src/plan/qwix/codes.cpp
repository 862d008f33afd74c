#include "plan/qwix/codes.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"

namespace quantmill {

namespace {

constexpr std::string_view kE4m3 = "float8_e4m3fn";
constexpr std::string_view kE2m1 = "float4_e2m1fn";
constexpr std::string_view kInt8 = "int8";
constexpr std::string_view kInt4 = "int4";

// F32 for what BF16 does not hold exactly.
DType exact_scale_type(DType stored) {
  const bool fits = stored == DType::kBf16 || stored == DType::kF8E8m0 || stored == DType::kU8;
  return fits ? DType::kBf16 : DType::kF32;
}

QwixCodes carried_codes(const Checkpoint& checkpoint, const SourceWeight& source) {
  QwixCodes codes;
  codes.scale_dtype = exact_scale_type(checkpoint.tensors()[*source.scales].entry.dtype);
  codes.block_rows = source.block_rows;
  codes.block_cols = source.block_cols;
  codes.has_zero_points = source.zero_points.has_value();
  switch (source.encoding) {
    case Encoding::kFp8:
      codes.logical_type = kE4m3;
      codes.dtype = DType::kF8E4m3;
      return codes;
    case Encoding::kMx:
      codes.logical_type = source.element == ElementFormat::kE2m1 ? kE2m1 : kE4m3;
      codes.dtype = DType::kF8E4m3;
      codes.block_cols = kMxBlock;
      return codes;
    case Encoding::kNvfp4:
      codes.logical_type = kE2m1;
      codes.dtype = DType::kF8E4m3;
      codes.scale_dtype = DType::kF32;  // a block's scale times the tensor's
      codes.block_cols = kNvfp4Block;
      return codes;
    case Encoding::kInt8:
      codes.logical_type = kInt8;
      return codes;
    case Encoding::kPackedInt:
      codes.logical_type = source.packing.bits == 4 ? kInt4 : kInt8;
      return codes;
    case Encoding::kPlain:
      break;
  }
  throw Error(ErrorCode::kInternal, "internal fault: a plain weight has no codes");
}

QwixCodes made_codes(Scheme scheme, std::uint64_t rows, std::uint64_t cols) {
  const std::uint64_t group = columns_together(scheme);
  switch (scheme) {
    case Scheme::kMxfp4:
      return {kE2m1, DType::kF8E4m3, DType::kBf16, 1, group, false};
    case Scheme::kNvfp4:  // a block's scale and the tensor's in one
      return {kE2m1, DType::kF8E4m3, DType::kF32, 1, group, false};
    case Scheme::kMxfp6E2m3:
    case Scheme::kMxfp6E3m2:
    case Scheme::kMxfp8:
      return {kE4m3, DType::kF8E4m3, DType::kBf16, 1, group, false};
    case Scheme::kFp8Tensor:
    case Scheme::kFp8Channel:
      return {kE4m3, DType::kF8E4m3, DType::kF32, 1, cols, false};
    case Scheme::kFp8Block:
      return {kE4m3,
              DType::kF8E4m3,
              DType::kF32,
              std::min(rows, rows_together(scheme)),
              std::min(cols, rows_together(scheme)),
              false};
    case Scheme::kInt8:
      return {kInt8, DType::kI8, DType::kF32, 1, cols, false};
    case Scheme::kW8a16:
      return {kInt8, DType::kI8, DType::kBf16, 1, cols, false};
    case Scheme::kW8a16G128:
      return {kInt8, DType::kI8, DType::kBf16, 1, group, false};
    case Scheme::kInt4G128:
    case Scheme::kInt4G32:
    case Scheme::kInt4AsymG128:
    case Scheme::kInt4AsymG32:
      return {kInt4, DType::kI8, DType::kBf16, 1, group, is_asymmetric(scheme)};
    case Scheme::kSource:
    case Scheme::kBf16:
    case Scheme::kF16:
    case Scheme::kF32:
      break;
  }
  throw Error(ErrorCode::kInternal, "internal fault: a scheme without codes in layout qwix");
}

}  // namespace

QwixCodes qwix_codes(const Checkpoint& checkpoint, const Plan& plan, const TensorWork& work) {
  QwixCodes codes =
      work.copies_codes
          ? carried_codes(checkpoint,
                          plan.architecture.weights[plan.architecture.tensors[work.tensor].stored])
          : made_codes(work.scheme, work.rows, work.cols);
  if (plan.recipe.scale_type == ScaleType::kF32) {
    codes.scale_dtype = DType::kF32;
  }
  return codes;
}

}  // namespace quantmill
