#pragma once

// Values to the codes and scales of a scheme, and back.

#include <cstddef>
#include <span>
#include <vector>

#include "device/context.h"
#include "kernels/fp8.h"
#include "kernels/matrix.h"
#include "kernels/mx.h"
#include "plan/recipe.h"

namespace quantmill {

// The MX format of a scheme that is one, with the recipe's rules.
MxSpec mx_spec_of(Scheme scheme, const Recipe& recipe);

// Not thread-safe: it keeps scales between steps.
class SchemeCodec {
 public:
  // Of a quantized scheme. `context` must outlive it.
  SchemeCodec(const Context& context, Scheme scheme, const Recipe& recipe);

  // Quantizes rows of a weight into the bytes of its stored parts (stored_parts, in that order);
  // values.rows is a multiple of rows_together, but for the weight's last rows. Only codes and
  // scales, the first two parts, are filled. values must be finite. With ScaleRule::kMse,
  // `importance` weighs the errors of columns (values.cols of them, or none: all alike).
  void encode(ConstFloatMatrix values,
              std::span<const std::span<std::byte>> parts,
              std::span<const float> importance = {});

  // What the codes just made stand for. Same shape and parts as encode.
  void decode(std::span<const std::span<std::byte>> parts, FloatMatrix values) const;

 private:
  void encode_fp8(ConstFloatMatrix values, std::span<const std::span<std::byte>> parts);
  void encode_integers(ConstFloatMatrix values,
                       std::span<const std::span<std::byte>> parts,
                       std::span<const float> importance);
  [[nodiscard]] ConstFloatMatrix scales(const BlockGrid& grid,
                                        std::size_t rows,
                                        std::size_t cols) const;

  const Context& context_;
  Scheme scheme_;
  MxSpec mx_;
  std::vector<float> scales_;          // of what was encoded last, where they are floats
  std::vector<std::int8_t> integers_;  // codes of what was encoded last, one a byte
};

}  // namespace quantmill
