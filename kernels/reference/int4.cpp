#include "kernels/int4.h"

#include <algorithm>
#include <cmath>

#include "kernels/backends.h"
#include "kernels/codec_float.h"
#include "kernels/int_group_scale.h"
#include "kernels/lane_sums.h"

namespace quantmill::reference {
namespace {

// As in int4.h; importance: of the group, or empty.
float group_error(const IntSpec& spec,
                  const IntGroupScale& group,
                  std::span<const float> values,
                  std::span<const float> importance) {
  const auto smallest = static_cast<float>(int_smallest(spec.bits));
  const auto largest = static_cast<float>(int_largest(spec.bits));
  const auto zero = static_cast<float>(group.zero_point);
  std::array<float, kSumLanes> lanes{};
  for (std::size_t c = 0; c < values.size(); ++c) {
    const float code =
        std::clamp(std::nearbyint(values[c] / group.scale) + zero, smallest, largest);
    const float error =
        ((code - zero) * group.scale - values[c]) * (importance.empty() ? 1.0F : importance[c]);
    lanes[c % kSumLanes] += error * error;
  }
  return add_lanes(lanes);
}

}  // namespace

void int_scales(const IntSpec& spec,
                ConstFloatMatrix values,
                float clip,
                FloatMatrix scales,
                std::span<std::int8_t> zero_points) {
  for (std::size_t r = 0; r < scales.rows; ++r) {
    for (std::size_t g = 0; g < scales.cols; ++g) {
      float low = 0;
      float high = 0;
      for (const float value : values.row(r).subspan(g * spec.group, spec.group)) {
        low = std::min(low, value);
        high = std::max(high, value);
      }
      const IntGroupScale group = int_group_scale(spec, low * clip, high * clip);
      scales.row(r)[g] = group.scale;
      if (!spec.is_symmetric) {
        zero_points[r * scales.cols + g] = group.zero_point;
      }
    }
  }
}

void int_search_scales(const IntSpec& spec,
                       ConstFloatMatrix values,
                       std::span<const float> importance,
                       FloatMatrix scales,
                       std::span<std::int8_t> zero_points) {
  for (std::size_t r = 0; r < scales.rows; ++r) {
    for (std::size_t g = 0; g < scales.cols; ++g) {
      const std::size_t begin = g * spec.group;
      const std::span<const float> group = values.row(r).subspan(begin, spec.group);
      const auto weights = importance.empty() ? importance : importance.subspan(begin, spec.group);
      const float low = std::min(0.0F, *std::ranges::min_element(group));
      const float high = std::max(0.0F, *std::ranges::max_element(group));
      IntGroupScale best = int_group_scale(spec, low, high);
      float least = group_error(spec, best, group, weights);
      for (const float clip : kIntTriedClips) {
        const IntGroupScale tried = int_group_scale(spec, low * clip, high * clip);
        const float error = group_error(spec, tried, group, weights);
        if (error < least) {
          least = error;
          best = tried;
        }
      }
      scales.row(r)[g] = best.scale;
      if (!spec.is_symmetric) {
        zero_points[r * scales.cols + g] = best.zero_point;
      }
    }
  }
}

void int_quantize(const IntSpec& spec,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  std::span<const std::int8_t> zero_points,
                  std::span<std::int8_t> codes) {
  const auto smallest = static_cast<float>(int_smallest(spec.bits));
  const auto largest = static_cast<float>(int_largest(spec.bits));
  for (std::size_t r = 0; r < values.rows; ++r) {
    for (std::size_t c = 0; c < values.cols; ++c) {
      const std::size_t group = r * scales.cols + c / spec.group;
      const auto zero = static_cast<float>(zero_points.empty() ? 0 : zero_points[group]);
      const float code = std::nearbyint(values.row(r)[c] / scales.data[group]) + zero;
      codes[r * values.cols + c] = static_cast<std::int8_t>(std::clamp(code, smallest, largest));
    }
  }
}

std::optional<MatrixPosition> int_dequantize(std::span<const std::int8_t> codes,
                                             ConstFloatMatrix scales,
                                             std::span<const std::int8_t> zero_points,
                                             std::span<const std::uint32_t> column_groups,
                                             FloatMatrix values) {
  const std::size_t width = scales.cols == 0 ? 1 : values.cols / scales.cols;
  std::optional<MatrixPosition> first;
  for (std::size_t r = 0; r < values.rows; ++r) {
    for (std::size_t c = 0; c < values.cols; ++c) {
      const std::size_t in_row = column_groups.empty() ? c / width : column_groups[c];
      const std::size_t group = r * scales.cols + in_row;
      const int zero = zero_points.empty() ? 0 : zero_points[group];
      const float value =
          static_cast<float>(codes[r * values.cols + c] - zero) * scales.data[group];
      values.row(r)[c] = value;
      if (!first && (float_bits(value) & 0x7f800000U) == 0x7f800000U) {
        first = MatrixPosition{r, c};
      }
    }
  }
  return first;
}

}  // namespace quantmill::reference
