#pragma once

// Rows of a weight as floats, for a search.

#include <cstdint>
#include <span>
#include <vector>

#include "device/context.h"
#include "device/work_buffer.h"
#include "pipeline/weight_reader.h"

namespace quantmill {

// How many rows of so many columns are read and worked on at a time, a multiple of `together`: the
// same on every backend, for sums that depend on it.
std::uint64_t rows_at_a_time(std::uint64_t cols, std::uint64_t together);

// As many as are worth it where kernels run, for what does not depend on it.
std::uint64_t rows_of_pass(const Context& context, std::uint64_t cols, std::uint64_t together);

// Not thread-safe: one per thread.
class FiniteRows {
 public:
  explicit FiniteRows(const Context& context) : context_(context), rows_(context) {}

  // These rows of a linear (ascending), in the columns that an activation has, for kernels (not
  // for the host: work_buffer.h), until the next call. Errors, kInput: NaN or infinity (tensor,
  // row, column); what WeightReader refuses. kIo; kDevice.
  ConstFloatMatrix read(WeightReader& reader,
                        const ModelTensor& tensor,
                        std::span<const std::uint64_t> rows,
                        const ColumnMap& columns);

 private:
  const Context& context_;
  WorkBuffer<float> rows_;
  std::vector<float> cut_;  // where only some columns are wanted, and rows_ is on a GPU
};

}  // namespace quantmill
