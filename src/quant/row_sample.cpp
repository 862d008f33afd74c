#include "quant/row_sample.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace quantmill {
namespace {

RowSample all_of(std::size_t count) {
  RowSample sample;
  sample.rows.resize(count);
  std::iota(sample.rows.begin(), sample.rows.end(), std::uint64_t{0});
  sample.weights.assign(count, 1.0);
  return sample;
}

// The size from which on rows stand for themselves, and the step along the sizes of the others.
struct Sizes {
  double certain = 0;
  double step = 0;
};

Sizes split_sizes(std::span<const double> sizes, std::size_t wanted) {
  std::vector<double> sorted(sizes.begin(), sizes.end());
  std::ranges::sort(sorted);  // summed from the smallest on
  std::vector<double> sums{0};
  for (const double size : sorted) {
    sums.push_back(sums.back() + size);
  }
  std::size_t left = wanted;
  std::size_t rest = sorted.size();
  while (left > 0 && rest > 0 && sorted[rest - 1] > 0 &&
         sorted[rest - 1] * static_cast<double>(left) >= sums[rest]) {
    --left;
    --rest;
  }
  return {rest < sorted.size() ? sorted[rest] : std::numeric_limits<double>::infinity(),
          left > 0 ? sums[rest] / static_cast<double>(left) : 0.0};
}

}  // namespace

RowSample sample_rows(std::span<const double> sizes, std::size_t wanted) {
  if (sizes.size() <= wanted) {
    return all_of(sizes.size());
  }
  const Sizes split = split_sizes(sizes, wanted);
  RowSample sample;
  double passed = 0;
  double next = split.step / 2;
  for (std::size_t row = 0; row < sizes.size(); ++row) {
    if (sizes[row] >= split.certain) {
      sample.rows.push_back(row);
      sample.weights.push_back(1);
      continue;
    }
    passed += sizes[row];
    if (split.step > 0 && passed > next) {
      sample.rows.push_back(row);
      sample.weights.push_back(split.step / sizes[row]);
      next += split.step;
    }
  }
  return sample;
}

}  // namespace quantmill
