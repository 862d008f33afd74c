#include "kernels/block_grid.h"

#include <algorithm>
#include <cmath>

#include "kernels/backends.h"

namespace quantmill::reference {

void block_amax(ConstFloatMatrix values, const BlockGrid& grid, FloatMatrix amax) {
  for (std::size_t r = 0; r < values.rows; ++r) {
    const std::span<float> row = amax.row((grid.first_row + r) / grid.rows);
    for (std::size_t c = 0; c < values.cols; ++c) {
      row[c / grid.cols] = std::max(row[c / grid.cols], std::fabs(values.row(r)[c]));
    }
  }
}

}  // namespace quantmill::reference
