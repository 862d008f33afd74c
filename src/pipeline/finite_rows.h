#pragma once

// Rows of a weight as floats, for a search.

#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/weight_reader.h"

namespace quantmill {

// How many rows of so many columns are read and worked on at a time: what stays in the second-level
// cache, a multiple of `together`.
std::uint64_t rows_at_a_time(std::uint64_t cols, std::uint64_t together);

// These rows of a linear (ascending), in the columns that an activation has, into `values` ([rows,
// columns.num_columns()] at its beginning). Errors, kInput: NaN or infinity (tensor, row, column);
// what WeightReader refuses. kIo.
void read_finite_rows(WeightReader& reader,
                      const ModelTensor& tensor,
                      std::span<const std::uint64_t> rows,
                      const ColumnMap& columns,
                      std::vector<float>& values);

}  // namespace quantmill
