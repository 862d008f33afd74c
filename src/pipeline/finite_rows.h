#pragma once

// Rows of a weight as floats, for a search.

#include <cstdint>
#include <vector>

#include "pipeline/weight_reader.h"

namespace quantmill {

// Rows first, first + step, … of a linear, `rows` of them, in the columns that an activation has,
// into `values` ([rows, columns.num_columns()] at its beginning). Errors, kInput: NaN or infinity
// (tensor, row, column); what WeightReader refuses. kIo.
void read_finite_rows(WeightReader& reader,
                      const ModelTensor& tensor,
                      std::uint64_t first,
                      std::uint64_t rows,
                      std::uint64_t step,
                      const ColumnMap& columns,
                      std::vector<float>& values);

}  // namespace quantmill
