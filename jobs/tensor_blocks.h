#pragma once

// Blocks of a quantized weight as they are stored: each with its scale and its codes.

#include <string>

#include "jobs/tensor_values.h"

namespace quantmill {

// Rows of a tensor that has a weight. Codes are numbers before the scale: (code - zero point) *
// scale is the value. kInput for columns that are grouped in an order of their own.
std::string describe_blocks(ValueReader& reader, const TensorValues& tensor, const RowSpan& rows);

// [{"row", "columns": [first, one past the last], "scale", "zero_point" or null, "codes"}]
std::string blocks_to_json(ValueReader& reader, const TensorValues& tensor, const RowSpan& rows);

}  // namespace quantmill
