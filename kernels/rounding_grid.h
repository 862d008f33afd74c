#pragma once

// Private to kernels/: one value to the nearest of a RoundingGrid, for every backend.

#include "kernels/codec.h"
#include "kernels/gptq.h"

namespace quantmill {

// x / scale is rounded; `zero` is of integers.
constexpr float round_to_grid(const RoundingGrid& grid, float x, float scale, int zero) {
  if (scale == 0) {
    return 0;
  }
  const float ratio = x / scale;
  if (!grid.is_integer) {
    return decode_element(grid.element, encode_element(grid.element, ratio)) * scale;
  }
  // Far outside, so that it fits an integer; then to even by the number whose last place is 1.
  const float limited = ratio < -1024 ? -1024.0F : ratio > 1024 ? 1024.0F : ratio;
  constexpr float kMagic = 0x1.8p23F;
  const int nearest = static_cast<int>((limited + kMagic) - kMagic) + zero;
  const int code = nearest < grid.smallest  ? grid.smallest
                   : nearest > grid.largest ? grid.largest
                                            : nearest;
  return static_cast<float>(code - zero) * scale;
}

}  // namespace quantmill
