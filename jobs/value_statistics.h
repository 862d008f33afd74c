#pragma once

// Minimum, maximum, mean and standard deviation of many values, given in pieces, and how they lie
// between the extremes.

#include <array>
#include <cstddef>
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

// Counts of finite values in bins of equal width from the smallest to the largest.
struct ValueHistogram {
  static constexpr std::size_t kNumBins = 32;

  // Of all values that will be added.
  explicit ValueHistogram(const ValueStatistics& statistics);

  void add(std::span<const double> values);

  // The least value of a bin.
  [[nodiscard]] double begin(std::size_t bin) const;

  double min = 0;
  double width = 0;  // of a bin; 0 if all values are the same: they are in the first
  std::array<std::uint64_t, kNumBins> counts{};
};

}  // namespace quantmill
