#include "pipeline/weighted_errors.h"

#include <array>

namespace quantmill {
namespace {

constexpr std::size_t kLanes = 8;

double add_up(const std::array<double, kLanes>& lanes) {
  double total = 0;
  for (const double lane : lanes) {
    total += lane;
  }
  return total;
}

}  // namespace

void add_weighted_errors(ConstFloatMatrix got,
                         ConstFloatMatrix want,
                         std::span<const float> weights,
                         ErrorSums& sums) {
  for (std::size_t row = 0; row < want.rows; ++row) {
    const float* const got_row = got.row(row).data();
    const float* const want_row = want.row(row).data();
    std::array<double, kLanes> errors{};
    std::array<double, kLanes> norms{};
    const auto add = [&](std::size_t column, std::size_t lane) {
      const double error = weights[column] * (got_row[column] - want_row[column]);
      const double norm = weights[column] * want_row[column];
      errors[lane] += error * error;
      norms[lane] += norm * norm;
    };
    std::size_t column = 0;
    for (; column + kLanes <= want.cols; column += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        add(column + lane, lane);
      }
    }
    for (std::size_t lane = 0; column < want.cols; ++column, ++lane) {
      add(column, lane);
    }
    sums.squared_error += add_up(errors);
    sums.squared_norm += add_up(norms);
  }
}

}  // namespace quantmill
