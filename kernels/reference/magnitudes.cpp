#include <algorithm>
#include <cmath>

#include "kernels/backends.h"
#include "kernels/lane_sums.h"
#include "kernels/mx.h"

namespace quantmill::reference {

void add_magnitudes(ConstFloatMatrix values,
                    std::span<const float> weights,
                    const ColumnSums& columns,
                    std::span<double> row_squares) {
  for (std::size_t r = 0; r < values.rows; ++r) {
    const std::span<const float> row = values.row(r);
    SumLanes lanes{};
    for (std::size_t begin = 0; begin < row.size(); begin += kMxBlock) {
      const std::size_t end = std::min(begin + kMxBlock, row.size());
      float amax = 0x1p-126F;
      for (std::size_t c = begin; c < end; ++c) {
        amax = std::max(amax, std::abs(row[c]));
      }
      const float inverse = 1.0F / amax;
      for (std::size_t c = begin; c < end; ++c) {
        const double value = row[c];
        const double weighted = row[c] * weights[c];
        columns.squares[c] += value * value;
        columns.shares[c] += static_cast<double>(std::abs(row[c]) * inverse);
        lanes[c % kSumLanes] += weighted * weighted;
      }
    }
    row_squares[r] = add_lanes(lanes);
  }
}

}  // namespace quantmill::reference
