#pragma once

// Values to the codes and scales of a scheme, and back.

#include <cstddef>
#include <span>
#include <vector>

#include "device/context.h"
#include "kernels/fp8.h"
#include "kernels/gptq.h"
#include "kernels/matrix.h"
#include "kernels/mx.h"
#include "pipeline/coded_rows.h"
#include "plan/recipe.h"

namespace quantmill {

// The MX format of a scheme that is one, with the recipe's rules.
MxSpec mx_spec_of(Scheme scheme, const Recipe& recipe);

// The stored scale of activations of largest magnitude `largest`: the factor of a code with FP8,
// and with NVFP4 what compressed-tensors calls input_global_scale, 2688 / largest.
float input_scale(Scheme scheme, float largest);

// Not thread-safe: it keeps scales between steps.
class SchemeCodec {
 public:
  // Of a quantized scheme. `context` must outlive it.
  SchemeCodec(const Context& context, Scheme scheme, const Recipe& recipe);

  // The largest magnitude of the weights that share a scale with what is encoded next; needed where
  // has_tensor_scale.
  void set_tensor_largest(float largest) { tensor_largest_ = largest; }

  // Quantizes rows of a weight into the bytes of its stored parts (stored_parts, in that order);
  // values.rows is a multiple of rows_together, but for the weight's last rows. A part that has one
  // row for all of them is empty but for the first. All parts are filled but kShape and
  // kInputScale. values must be finite. With ScaleRule::kMse, `importance` weighs the errors of
  // columns (values.cols of them, or none: all alike). With `feedback`, of a scheme that
  // takes_feedback, the codes for these scales are those of gptq_round.
  void encode(ConstFloatMatrix values,
              std::span<const std::span<std::byte>> parts,
              std::span<const float> importance = {},
              const ErrorFeedback* feedback = nullptr);

  // Puts integers that are there already into the bytes of the stored parts, as encode. `rows` has
  // the scheme's groups, scales of values that its type has, and zero points where it has any.
  void store(const CodedRows& rows, std::span<const std::span<std::byte>> parts);

  // What the codes just made stand for. Same shape and parts as encode.
  void decode(std::span<const std::span<std::byte>> parts, FloatMatrix values) const;

 private:
  // Codes anew, for the scales that are there.
  void feed_back(ConstFloatMatrix values,
                 std::span<const std::span<std::byte>> parts,
                 const ErrorFeedback& feedback);
  // One float for each group of columns of what was encoded last.
  [[nodiscard]] std::vector<float> group_scales(ConstFloatMatrix values,
                                                std::span<const std::span<std::byte>> parts) const;
  void encode_nvfp4(ConstFloatMatrix values,
                    std::span<const std::span<std::byte>> parts,
                    std::span<const float> importance);
  void encode_fp8(ConstFloatMatrix values, std::span<const std::span<std::byte>> parts);
  void encode_integers(ConstFloatMatrix values,
                       std::span<const std::span<std::byte>> parts,
                       std::span<const float> importance);
  // Codes into parts, from integers_.
  void store_integers(ConstFloatMatrix values, std::span<const std::span<std::byte>> parts);
  void pack(std::size_t rows, std::size_t cols, std::span<const std::span<std::byte>> parts) const;
  // From integers_, scales_ and zero_points_ of such a matrix, as compressed-tensors stores them…
  void pack_integers(std::size_t rows,
                     std::size_t cols,
                     std::span<const std::span<std::byte>> parts) const;
  // … and as Quark does, [in, out].
  void pack_turned(std::size_t rows,
                   std::size_t cols,
                   std::span<const std::span<std::byte>> parts) const;
  [[nodiscard]] ConstFloatMatrix scales(const BlockGrid& grid,
                                        std::size_t rows,
                                        std::size_t cols) const;

  const Context& context_;
  Scheme scheme_;
  Layout layout_;
  MxSpec mx_;
  float tensor_largest_ = 0;
  std::vector<float> scales_;             // of what was encoded last, where they are floats
  std::vector<std::int8_t> integers_;     // codes of what was encoded last, one a byte
  std::vector<std::int8_t> zero_points_;  // of its groups, if they are not symmetric
};

}  // namespace quantmill
