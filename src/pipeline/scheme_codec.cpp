#include "pipeline/scheme_codec.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "kernels/int4.h"
#include "kernels/int4_pack.h"
#include "kernels/mx.h"

namespace quantmill {
namespace {

std::span<std::uint8_t> as_codes(std::span<std::byte> bytes) {
  return {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()};
}

ElementFormat element_of(Scheme scheme) {
  return scheme == Scheme::kMxfp6E2m3   ? ElementFormat::kE2m3
         : scheme == Scheme::kMxfp6E3m2 ? ElementFormat::kE3m2
                                        : ElementFormat::kE2m1;
}

bool is_fp8(Scheme scheme) {
  return scheme == Scheme::kFp8Block || scheme == Scheme::kFp8Channel;
}

// As compressed-tensors computes its scales.
IntSpec int_spec_of(Scheme scheme, std::size_t cols) {
  IntSpec spec;
  spec.bits = scheme == Scheme::kInt8 ? 8 : 4;
  spec.group = scheme == Scheme::kInt8 ? cols : columns_together(scheme);
  spec.scale_type = scheme == Scheme::kInt8 ? DType::kF32 : DType::kBf16;
  return spec;
}

BlockGrid grid_of(Scheme scheme, std::size_t cols) {
  if (scheme == Scheme::kFp8Block) {
    return {rows_together(scheme), rows_together(scheme)};  // square blocks
  }
  return {1, cols};
}

}  // namespace

MxSpec mx_spec_of(Scheme scheme, const Recipe& recipe) {
  MxSpec spec;
  spec.element = element_of(scheme);
  spec.scale_rule = recipe.scale_rule;
  spec.ties = recipe.compat == Compat::kSeed ? TieRule::kSeed : TieRule::kEven;
  return spec;
}

SchemeCodec::SchemeCodec(const Context& context, Scheme scheme, const Recipe& recipe)
    : context_(context), scheme_(scheme), mx_(mx_spec_of(scheme, recipe)) {}

void SchemeCodec::encode(ConstFloatMatrix values,
                         std::span<const std::span<std::byte>> parts,
                         std::span<const float> importance) {
  if (mx_.scale_rule != ScaleRule::kMse) {
    importance = {};
  }
  if (is_mx(scheme_)) {
    mx_quantize(context_, mx_, values, as_codes(parts[0]), as_codes(parts[1]), importance);
  } else if (is_fp8(scheme_)) {
    encode_fp8(values, parts);
  } else {
    encode_integers(values, parts, importance);
  }
}

void SchemeCodec::decode(std::span<const std::span<std::byte>> parts, FloatMatrix values) const {
  if (is_mx(scheme_)) {
    mx_dequantize(context_, mx_.element, as_codes(parts[0]), as_codes(parts[1]), values);
    return;
  }
  if (!is_fp8(scheme_)) {
    const IntSpec spec = int_spec_of(scheme_, values.cols);
    (void)int_dequantize(context_,
                         integers_,
                         {scales_.data(), values.rows, values.cols / spec.group},
                         {},
                         {},
                         values);
    return;
  }
  const BlockGrid grid = grid_of(scheme_, values.cols);
  (void)fp8_dequantize(
      context_, as_codes(parts[0]), scales(grid, values.rows, values.cols), grid, values);
}

void SchemeCodec::encode_fp8(ConstFloatMatrix values, std::span<const std::span<std::byte>> parts) {
  const BlockGrid grid = grid_of(scheme_, values.cols);
  const std::size_t rows = num_block_rows(grid, values.rows);
  const std::size_t cols = num_block_cols(grid, values.cols);
  scales_.assign(rows * cols, 0.0F);
  block_amax(context_, values, grid, FloatMatrix{scales_.data(), rows, cols});
  for (float& scale : scales_) {
    scale = fp8_scale(scale, DType::kF32);
  }
  fp8_quantize(context_, values, scales(grid, values.rows, values.cols), grid, as_codes(parts[0]));
  check_invariant(parts[1].size() == scales_.size() * sizeof(float), "scales of another size");
  std::memcpy(parts[1].data(), scales_.data(), parts[1].size());
}

void SchemeCodec::encode_integers(ConstFloatMatrix values,
                                  std::span<const std::span<std::byte>> parts,
                                  std::span<const float> importance) {
  const IntSpec spec = int_spec_of(scheme_, values.cols);
  const std::size_t groups = values.cols / spec.group;
  scales_.resize(values.rows * groups);
  integers_.resize(values.rows * values.cols);
  const FloatMatrix scales{scales_.data(), values.rows, groups};
  if (mx_.scale_rule == ScaleRule::kMse) {
    int_search_scales(context_, spec, values, importance, scales, {});
  } else {
    int_scales(context_, spec, values, 1.0F, scales, {});
  }
  int_quantize(context_, spec, values, {scales_.data(), values.rows, groups}, {}, integers_);
  if (scheme_ == Scheme::kInt8) {
    std::memcpy(parts[0].data(), integers_.data(), parts[0].size());
  } else {
    const IntPacking packing{spec.bits, NibbleOrder::kSequential, IntCode::kOffset};
    int_pack_columns(context_, packing, integers_, values.rows, values.cols, as_codes(parts[0]));
  }
  (void)encode_from_float(context_, {scales_.data(), 1, scales_.size()}, spec.scale_type, parts[1]);
}

ConstFloatMatrix SchemeCodec::scales(const BlockGrid& grid,
                                     std::size_t rows,
                                     std::size_t cols) const {
  return {scales_.data(), num_block_rows(grid, rows), num_block_cols(grid, cols)};
}

}  // namespace quantmill
