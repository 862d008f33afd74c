#include "kernels/gptq.h"

#include <vector>

#include "kernels/backends.h"
#include "kernels/rounding_grid.h"

namespace quantmill::reference {

void gptq_round(const RoundingGrid& grid,
                const ErrorFeedback& feedback,
                ConstFloatMatrix values,
                ConstFloatMatrix scales,
                std::span<const std::int8_t> zero_points,
                FloatMatrix rounded) {
  const std::size_t of_group = values.cols / scales.cols;
  std::vector<float> losses(values.cols);
  for (std::size_t row = 0; row < values.rows; ++row) {
    for (std::size_t place = 0; place < values.cols; ++place) {
      const std::size_t column = feedback.order[place];
      const std::size_t group = column / of_group;
      float x = values.row(row)[column];
      for (std::size_t before = 0; before < place; ++before) {
        x -= losses[before] * feedback.factors[place * values.cols + before];
      }
      const int zero = zero_points.empty() ? 0 : zero_points[row * scales.cols + group];
      rounded.row(row)[column] = round_to_grid(grid, x, scales.row(row)[group], zero);
      losses[place] = x - rounded.row(row)[column];
    }
  }
}

}  // namespace quantmill::reference
