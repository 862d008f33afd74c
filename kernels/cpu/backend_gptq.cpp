// The cpu backend of kernels/gptq.h.

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/backends.h"
#include "kernels/cpu/entries.h"
#include "kernels/rounding_grid.h"

namespace quantmill::cpu {
namespace {

using RowLanes = std::array<float, kGptqRowsTogether>;

}  // namespace

void gptq_round(Isa isa,
                const RoundingGrid& grid,
                const ErrorFeedback& feedback,
                ConstFloatMatrix values,
                ConstFloatMatrix scales,
                std::span<const std::int8_t> zero_points,
                FloatMatrix rounded) {
  const std::size_t cols = values.cols;
  const std::size_t of_group = cols / scales.cols;
  std::vector<RowLanes> losses(cols);  // by place
  std::array<RowLanes, kGptqPlaces> left{};
  for (std::size_t first = 0; first < values.rows; first += kGptqRowsTogether) {
    const std::size_t rows = std::min(kGptqRowsTogether, values.rows - first);
    for (std::size_t begin = 0; begin < cols; begin += kGptqPlaces) {
      const std::size_t places = std::min(kGptqPlaces, cols - begin);
      for (std::size_t k = 0; k < places; ++k) {
        for (std::size_t row = 0; row < rows; ++row) {
          left[k][row] = values.row(first + row)[feedback.order[begin + k]];
        }
      }
      const float* const factors = feedback.factors.data() + begin * cols;
      if (places == kGptqPlaces) {
        entries(isa).gptq_feed_back(
            {left.front().data(), losses.front().data(), factors, begin, cols});
      }
      for (std::size_t k = 0; k < places; ++k) {
        const std::size_t column = feedback.order[begin + k];
        const std::size_t group = column / of_group;
        const std::size_t known = places == kGptqPlaces ? begin : 0;  // losses that are taken off
        for (std::size_t c = known; c < begin + k; ++c) {
          for (std::size_t row = 0; row < kGptqRowsTogether; ++row) {
            left[k][row] -= losses[c][row] * factors[k * cols + c];
          }
        }
        for (std::size_t row = 0; row < rows; ++row) {
          const std::size_t at = first + row;
          const int zero = zero_points.empty() ? 0 : zero_points[at * scales.cols + group];
          const float nearest = round_to_grid(grid, left[k][row], scales.row(at)[group], zero);
          rounded.row(at)[column] = nearest;
          losses[begin + k][row] = left[k][row] - nearest;
        }
      }
    }
  }
}

}  // namespace quantmill::cpu
