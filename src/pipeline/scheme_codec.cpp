#include "pipeline/scheme_codec.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "device/work_buffer.h"
#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "kernels/int4.h"
#include "kernels/int4_pack.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"

namespace quantmill {
namespace {

std::span<std::uint8_t> as_codes(std::span<std::byte> bytes) {
  return {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()};
}

bool is_fp8(Scheme scheme) {
  return scheme == Scheme::kFp8Block || scheme == Scheme::kFp8Channel ||
         scheme == Scheme::kFp8Tensor;
}

// As compressed-tensors computes its scales.
IntSpec int_spec_of(Scheme scheme, std::size_t cols) {
  const bool has_row_scales = scheme == Scheme::kInt8 || scheme == Scheme::kW8a16;
  IntSpec spec;
  spec.bits = has_row_scales || scheme == Scheme::kW8a16G128 ? 8 : 4;
  spec.group = has_row_scales ? cols : columns_together(scheme);
  spec.is_symmetric = !is_asymmetric(scheme);
  spec.scale_type = scheme == Scheme::kInt8 ? DType::kF32 : DType::kBf16;
  return spec;
}

BlockGrid grid_of(Scheme scheme, std::size_t rows, std::size_t cols) {
  if (scheme == Scheme::kFp8Tensor) {
    return {std::max<std::size_t>(1, rows), cols};
  }
  if (scheme == Scheme::kFp8Block) {
    return {rows_together(scheme), rows_together(scheme)};  // square blocks
  }
  return {1, cols};
}

}  // namespace

MxSpec mx_spec_of(Scheme scheme, const Recipe& recipe) {
  MxSpec spec;
  spec.element = mx_element(scheme);
  spec.scale_rule = recipe.scale_rule;
  spec.ties = recipe.compat == Compat::kSeed ? TieRule::kSeed : TieRule::kEven;
  return spec;
}

SchemeCodec::SchemeCodec(const Context& context, Scheme scheme, const Recipe& recipe)
    : context_(context), scheme_(scheme), layout_(recipe.layout), mx_(mx_spec_of(scheme, recipe)) {}

float input_scale(Scheme scheme, float largest) {
  return scheme == Scheme::kNvfp4 ? nvfp4_global_scale(largest, GlobalScaleUse::kDivides).value
                                  : fp8_scale(largest, DType::kF32);
}

void SchemeCodec::encode(ConstFloatMatrix values,
                         std::span<const std::span<std::byte>> parts,
                         std::span<const float> importance,
                         const ErrorFeedback* feedback) {
  if (mx_.scale_rule != ScaleRule::kMse) {
    importance = {};
  }
  if (is_mx(scheme_)) {
    mx_quantize(context_, mx_, values, as_codes(parts[0]), as_codes(parts[1]), importance);
  } else if (scheme_ == Scheme::kNvfp4) {
    encode_nvfp4(values, parts, importance);
  } else if (is_fp8(scheme_)) {
    encode_fp8(values, parts);
  } else {
    encode_integers(values, parts, importance);
  }
  if (feedback != nullptr) {
    feed_back(values, parts, *feedback);
  }
}

void SchemeCodec::feed_back(ConstFloatMatrix values,
                            std::span<const std::span<std::byte>> parts,
                            const ErrorFeedback& feedback) {
  check_invariant(takes_feedback(scheme_), "a scheme that takes no feedback");
  if (values.rows == 0) {
    return;
  }
  RoundingGrid grid;
  std::vector<std::int8_t> zero_points;
  if (is_mx(scheme_)) {
    grid.element = mx_.element;
  } else if (scheme_ != Scheme::kNvfp4) {
    const std::size_t bits = int_spec_of(scheme_, values.cols).bits;
    grid = {true, {}, int_smallest(bits), int_largest(bits)};
    zero_points = zero_points_;
  }
  const std::vector<float> scales = group_scales(values, parts);
  WorkBuffer<float> rounded(context_);
  rounded.resize(values.rows * values.cols);
  gptq_round(context_,
             grid,
             feedback,
             values,
             {scales.data(), values.rows, scales.size() / std::max<std::size_t>(1, values.rows)},
             zero_points,
             {rounded.data(), values.rows, values.cols});
  const ConstFloatMatrix found{rounded.data(), values.rows, values.cols};
  if (is_mx(scheme_)) {
    mx_encode(context_, mx_.element, found, as_codes(parts[1]), as_codes(parts[0]));
  } else if (scheme_ == Scheme::kNvfp4) {
    nvfp4_quantize(context_,
                   found,
                   as_codes(parts[1]),
                   nvfp4_global_scale(tensor_largest_, GlobalScaleUse::kDivides),
                   as_codes(parts[0]));
  } else {
    store_integers(found, parts);
  }
}

std::vector<float> SchemeCodec::group_scales(ConstFloatMatrix values,
                                             std::span<const std::span<std::byte>> parts) const {
  if (!is_mx(scheme_) && scheme_ != Scheme::kNvfp4) {
    return scales_;
  }
  const GlobalScale global = nvfp4_global_scale(tensor_largest_, GlobalScaleUse::kDivides);
  std::vector<float> scales;
  for (const std::uint8_t byte : as_codes(parts[1])) {
    scales.push_back(is_mx(scheme_) ? decode_e8m0(byte) : nvfp4_factor(byte, global));
  }
  check_invariant(values.rows == 0 || scales.size() % values.rows == 0, "scales of other rows");
  return scales;
}

void SchemeCodec::decode(std::span<const std::span<std::byte>> parts, FloatMatrix values) const {
  if (is_mx(scheme_)) {
    mx_dequantize(context_, mx_.element, as_codes(parts[0]), as_codes(parts[1]), values);
    return;
  }
  if (scheme_ == Scheme::kNvfp4) {
    (void)nvfp4_dequantize(context_,
                           as_codes(parts[0]),
                           as_codes(parts[1]),
                           nvfp4_global_scale(tensor_largest_, GlobalScaleUse::kDivides),
                           values);
    return;
  }
  if (!is_fp8(scheme_)) {
    const IntSpec spec = int_spec_of(scheme_, values.cols);
    (void)int_dequantize(context_,
                         integers_,
                         {scales_.data(), values.rows, values.cols / spec.group},
                         zero_points_,
                         {},
                         values);
    return;
  }
  const BlockGrid grid = grid_of(scheme_, values.rows, values.cols);
  (void)fp8_dequantize(
      context_, as_codes(parts[0]), scales(grid, values.rows, values.cols), grid, values);
}

void SchemeCodec::encode_nvfp4(ConstFloatMatrix values,
                               std::span<const std::span<std::byte>> parts,
                               std::span<const float> importance) {
  const GlobalScale global = nvfp4_global_scale(tensor_largest_, GlobalScaleUse::kDivides);
  if (mx_.scale_rule == ScaleRule::kMse) {
    nvfp4_search_scales(context_, values, global, importance, as_codes(parts[1]));
  } else {
    nvfp4_block_scales(context_, values, global, as_codes(parts[1]));
  }
  nvfp4_quantize(context_, values, as_codes(parts[1]), global, as_codes(parts[0]));
  if (!parts[2].empty()) {
    std::memcpy(parts[2].data(), &global.value, sizeof global.value);
  }
}

void SchemeCodec::encode_fp8(ConstFloatMatrix values, std::span<const std::span<std::byte>> parts) {
  const BlockGrid grid = grid_of(scheme_, values.rows, values.cols);
  // A tensor without rows has its scale too.
  const std::size_t rows = scheme_ == Scheme::kFp8Tensor ? 1 : num_block_rows(grid, values.rows);
  const std::size_t cols = num_block_cols(grid, values.cols);
  scales_.assign(rows * cols, tensor_largest_);
  if (scheme_ != Scheme::kFp8Tensor) {
    block_amax(context_, values, grid, FloatMatrix{scales_.data(), rows, cols});
  }
  for (float& scale : scales_) {
    scale = fp8_scale(scale, DType::kF32);
  }
  fp8_quantize(context_, values, scales(grid, values.rows, values.cols), grid, as_codes(parts[0]));
  if (scheme_ == Scheme::kFp8Tensor && parts[1].empty()) {
    return;  // it stands before the first rows
  }
  check_invariant(parts[1].size() == scales_.size() * sizeof(float), "scales of another size");
  copy_bytes(parts[1].data(), scales_.data(), parts[1].size());
}

void SchemeCodec::encode_integers(ConstFloatMatrix values,
                                  std::span<const std::span<std::byte>> parts,
                                  std::span<const float> importance) {
  const IntSpec spec = int_spec_of(scheme_, values.cols);
  const std::size_t groups = values.cols / spec.group;
  scales_.resize(values.rows * groups);
  integers_.resize(values.rows * values.cols);
  zero_points_.resize(spec.is_symmetric ? 0 : scales_.size());
  const FloatMatrix scales{scales_.data(), values.rows, groups};
  if (mx_.scale_rule == ScaleRule::kMse) {
    int_search_scales(context_, spec, values, importance, scales, zero_points_);
  } else {
    int_scales(context_, spec, values, 1.0F, scales, zero_points_);
  }
  store_integers(values, parts);
}

void SchemeCodec::store_integers(ConstFloatMatrix values,
                                 std::span<const std::span<std::byte>> parts) {
  const IntSpec spec = int_spec_of(scheme_, values.cols);
  int_quantize(context_,
               spec,
               values,
               {scales_.data(), values.rows, values.cols / spec.group},
               zero_points_,
               integers_);
  pack(values.rows, values.cols, parts);
}

void SchemeCodec::store(const CodedRows& rows, std::span<const std::span<std::byte>> parts) {
  const auto codes =
      std::span(reinterpret_cast<const std::int8_t*>(rows.codes.data()), rows.codes.size());
  integers_.assign(codes.begin(), codes.end());
  scales_ = rows.scales;
  zero_points_ = rows.zero_points;
  pack(rows.rows, rows.cols, parts);
}

void SchemeCodec::pack(std::size_t rows,
                       std::size_t cols,
                       std::span<const std::span<std::byte>> parts) const {
  if (layout_ == Layout::kQuark) {
    pack_turned(rows, cols, parts);
  } else {
    pack_integers(rows, cols, parts);
  }
}

void SchemeCodec::pack_integers(std::size_t rows,
                                std::size_t cols,
                                std::span<const std::span<std::byte>> parts) const {
  const IntSpec spec = int_spec_of(scheme_, cols);
  const IntPacking packing{spec.bits, NibbleOrder::kSequential, IntCode::kOffset};
  if (scheme_ == Scheme::kInt8) {
    copy_bytes(parts[0].data(), integers_.data(), parts[0].size());
  } else {
    int_pack_columns(context_, packing, integers_, rows, cols, as_codes(parts[0]));
  }
  (void)encode_from_float(context_, {scales_.data(), 1, scales_.size()}, spec.scale_type, parts[1]);
  if (!spec.is_symmetric) {
    int_pack_rows(context_, packing, zero_points_, rows, cols / spec.group, as_codes(parts[2]));
  }
}

void SchemeCodec::pack_turned(std::size_t rows,
                              std::size_t cols,
                              std::span<const std::span<std::byte>> parts) const {
  const IntSpec spec = int_spec_of(scheme_, cols);
  const std::size_t groups = cols / spec.group;
  const IntPacking packing{spec.bits,
                           NibbleOrder::kAwq,
                           spec.is_symmetric ? IntCode::kTwosComplement : IntCode::kOffset};
  std::vector<std::int8_t> turned(integers_.size());
  transpose_codes(integers_, rows, cols, turned);
  int_pack_columns(context_, packing, turned, cols, rows, as_codes(parts[0]));
  std::vector<float> turned_scales(scales_.size());
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t group = 0; group < groups; ++group) {
      turned_scales[group * rows + row] = scales_[row * groups + group];
    }
  }
  (void)encode_from_float(
      context_, {turned_scales.data(), 1, turned_scales.size()}, spec.scale_type, parts[1]);
  turned.assign(scales_.size(), 0);
  if (!spec.is_symmetric) {
    transpose_codes(zero_points_, rows, groups, turned);
  }
  int_pack_columns(context_, packing, turned, groups, rows, as_codes(parts[2]));
}

ConstFloatMatrix SchemeCodec::scales(const BlockGrid& grid,
                                     std::size_t rows,
                                     std::size_t cols) const {
  return {scales_.data(), num_block_rows(grid, rows), num_block_cols(grid, cols)};
}

}  // namespace quantmill
