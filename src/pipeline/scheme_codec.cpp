#include "pipeline/scheme_codec.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/fp8.h"
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

BlockGrid grid_of(Scheme scheme, std::size_t cols) {
  if (scheme == Scheme::kFp8Block) {
    return {rows_together(scheme), rows_together(scheme)};  // square blocks
  }
  return {1, cols};
}

}  // namespace

MxSpec mx_spec_of(const Recipe& recipe) {
  MxSpec spec;
  spec.element = element_of(recipe.scheme);
  spec.scale_rule = recipe.scale_rule;
  spec.ties = recipe.compat == Compat::kSeed ? TieRule::kSeed : TieRule::kEven;
  return spec;
}

SchemeCodec::SchemeCodec(const Context& context, const Recipe& recipe)
    : context_(context), scheme_(recipe.scheme), mx_(mx_spec_of(recipe)) {}

void SchemeCodec::encode(ConstFloatMatrix values, std::span<const std::span<std::byte>> parts) {
  if (is_mx(scheme_)) {
    mx_quantize(context_, mx_, values, as_codes(parts[0]), as_codes(parts[1]));
  } else {
    encode_fp8(values, parts);
  }
}

void SchemeCodec::decode(std::span<const std::span<std::byte>> parts, FloatMatrix values) const {
  if (is_mx(scheme_)) {
    mx_dequantize(context_, mx_.element, as_codes(parts[0]), as_codes(parts[1]), values);
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

ConstFloatMatrix SchemeCodec::scales(const BlockGrid& grid,
                                     std::size_t rows,
                                     std::size_t cols) const {
  return {scales_.data(), num_block_rows(grid, rows), num_block_cols(grid, cols)};
}

}  // namespace quantmill
