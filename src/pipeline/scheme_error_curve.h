#pragma once

// The error of quantizing with candidate scales, for schemes that have no kernel of their own for
// it (mx_error_curve).

#include <cstddef>
#include <span>
#include <vector>

#include "device/context.h"
#include "device/work_buffer.h"
#include "kernels/matrix.h"
#include "pipeline/scheme_codec.h"
#include "plan/recipe.h"

namespace quantmill {

// Not thread-safe: it keeps buffers.
class SchemeErrorCurve {
 public:
  // `context` must outlive it.
  SchemeErrorCurve(const Context& context, Scheme scheme, const Recipe& recipe);

  // As mx_error_curve: sums[i] += sum of ((Q(values * s_i) / s_i - values) * importance)^2. Each
  // operation rounded to float once; squares in double, as add_errors adds them. values.rows as
  // SchemeCodec::encode wants them; it is given importance / s_i. A scale of the whole tensor is
  // taken from these values, since what it will be is known only when all candidates are chosen.
  void add(ConstFloatMatrix values,
           std::span<const float> importance,
           ConstFloatMatrix candidates,
           std::span<double> sums);

 private:
  const Context& context_;
  Scheme scheme_;
  Layout layout_;
  SchemeCodec codec_;
  std::vector<std::vector<std::byte>> parts_;
  // Where kernels run: values * importance; values * s, then what their codes stand for / s *
  // importance.
  WorkBuffer<float> weighted_;
  WorkBuffer<float> scaled_;
  std::vector<float> back_;  // 1 / s
  std::vector<float> folded_importance_;
};

}  // namespace quantmill
