#pragma once

// Which rows of a weight are looked at where looking at all of them takes too long.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace quantmill {

struct RowSample {
  std::vector<std::uint64_t> rows;  // ascending
  std::vector<double> weights;      // how many rows each stands for
};

// About `wanted` of the rows with these sizes (not negative, finite), so that sums that grow with
// the sizes are kept: rows as large as the mean share of a chosen one are all taken and stand for
// themselves; of the others, systematically along their added sizes, each with a chance in
// proportion to its size and the weight that makes up for it (Madow: On the theory of systematic
// sampling II, 1949). Few rows of a model's weights carry most of the output: every n-th row would
// miss them. All rows if there are no more than wanted.
RowSample sample_rows(std::span<const double> sizes, std::size_t wanted);

}  // namespace quantmill
