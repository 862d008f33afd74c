#pragma once

// Minimum, maximum, mean and standard deviation of many values, given in pieces.

#include <cstdint>
#include <limits>
#include <span>

namespace quantmill {

// Of the finite values; the others are counted.
struct ValueStatistics {
  std::uint64_t num_finite = 0;
  std::uint64_t num_nan = 0;
  std::uint64_t num_infinite = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double mean = 0;
  double squares = 0;  // sum of (x - mean)^2

  void add(std::span<const double> values);

  // sqrt(squares / num_finite); 0 without values.
  [[nodiscard]] double deviation() const;
};

}  // namespace quantmill
