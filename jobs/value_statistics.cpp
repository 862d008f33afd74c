#include "jobs/value_statistics.h"

#include <algorithm>
#include <cmath>

namespace quantmill {

// Mean and squares of a piece in two passes, then joined to those so far (Chan, Golub and LeVeque
// 1983): sums of squares alone would lose the deviation of values that lie far from zero.
void ValueStatistics::add(std::span<const double> values) {
  double sum = 0;
  std::uint64_t count = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      ++(std::isnan(value) ? num_nan : num_infinite);
      continue;
    }
    min = std::min(min, value);
    max = std::max(max, value);
    sum += value;
    ++count;
  }
  if (count == 0) {
    return;
  }
  const double piece_mean = sum / static_cast<double>(count);
  double piece_squares = 0;
  for (const double value : values) {
    piece_squares += std::isfinite(value) ? (value - piece_mean) * (value - piece_mean) : 0;
  }
  const auto before = static_cast<double>(num_finite);
  const auto added = static_cast<double>(count);
  const double distance = piece_mean - mean;
  squares += piece_squares + distance * distance * before * added / (before + added);
  mean += distance * added / (before + added);
  num_finite += count;
}

double ValueStatistics::deviation() const {
  return num_finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(num_finite));
}

ValueHistogram::ValueHistogram(const ValueStatistics& statistics) {
  if (statistics.num_finite > 0) {
    min = statistics.min;
    width = (statistics.max - statistics.min) / static_cast<double>(kNumBins);
  }
}

void ValueHistogram::add(std::span<const double> values) {
  for (const double value : values) {
    if (std::isfinite(value)) {
      const double bin = width > 0 ? (value - min) / width : 0;
      ++counts[std::min(static_cast<std::size_t>(bin), kNumBins - 1)];
    }
  }
}

double ValueHistogram::begin(std::size_t bin) const {
  return min + static_cast<double>(bin) * width;
}

}  // namespace quantmill
