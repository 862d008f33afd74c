#include "kernels/backends.h"
#include "kernels/lane_sums.h"

namespace quantmill::reference {

void add_errors(ConstFloatMatrix got,
                ConstFloatMatrix want,
                ErrorSums& sums,
                std::span<const float> weights) {
  for (std::size_t r = 0; r < want.rows; ++r) {
    SumLanes errors{};
    SumLanes norms{};
    for (std::size_t c = 0; c < want.cols; ++c) {
      const float weight = weights.empty() ? 1.0F : weights[c];
      const double error = (got.row(r)[c] - want.row(r)[c]) * weight;
      const double value = want.row(r)[c] * weight;
      errors[c % kSumLanes] += error * error;
      norms[c % kSumLanes] += value * value;
    }
    sums.squared_error += add_lanes(errors);
    sums.squared_norm += add_lanes(norms);
  }
}

}  // namespace quantmill::reference
