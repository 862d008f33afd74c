#pragma once

// Private to kernels/: the formula of int_scales (int4.h) for one group, defined once.

#include <cmath>

#include "kernels/int4.h"
#include "kernels/stored_scale.h"

namespace quantmill {

struct IntGroupScale {
  float scale = 1;
  std::int8_t zero_point = 0;
};

// low <= 0 <= high, after clipping.
constexpr IntGroupScale int_group_scale(const IntSpec& spec, float low, float high) {
  const auto smallest = static_cast<float>(int_smallest(spec.bits));
  const auto largest = static_cast<float>(int_largest(spec.bits));
  const float range = spec.is_symmetric ? std::fmax(-low, high) : high - low;
  float divisor = largest - smallest;
  if (spec.is_symmetric) {
    divisor = spec.scale_rule == IntScaleRule::kHalfRange ? divisor / 2 : largest;
  }
  IntGroupScale result;
  result.scale = range == 0 ? 1.0F : stored_scale(range / divisor, spec.scale_type);
  if (!spec.is_symmetric) {
    const float zero_point = smallest - std::nearbyint(low / result.scale);
    result.zero_point = static_cast<std::int8_t>(std::fmin(zero_point, largest));
  }
  return result;
}

}  // namespace quantmill
