#pragma once

// Tensors of a checkpoint as matrices of numbers, whatever they are stored as: what `inspect` and
// `diff` look at.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/coded_rows.h"
#include "pipeline/weight_reader.h"
#include "plan/architecture.h"
#include "plan/source_weights.h"

namespace quantmill {

// Where a tensor's values come from.
struct TensorValues {
  std::string name;
  const SourceTensor* stored = nullptr;  // of a weight in codes: these
  std::optional<SourceWeight> weight;    // if it is stored as codes and scales
  std::vector<std::uint64_t> shape;      // of the values
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
};

// Rows [begin, end).
struct RowSpan {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The tensor of this name, or the weight that is called so or whose codes are. The checkpoint must
// outlive it. kInput, with similar names, if there is none.
TensorValues find_values(const Checkpoint& checkpoint, const std::string& name);

// Every weight, and every tensor that is none's codes, scales or the like, in the checkpoint's
// order. A folder that does not make sense as a model is seen tensor by tensor.
std::vector<TensorValues> all_values(const Checkpoint& checkpoint);

// "MXFP4", "INT4", "BF16" …
std::string format_name(const TensorValues& tensor);

// Reads and decodes rows of a tensor, one piece at a time. Not thread-safe. kIo; kInput for a dtype
// whose elements are no numbers.
class ValueReader {
 public:
  // The arguments must outlive it.
  ValueReader(const Checkpoint& checkpoint, const TensorValues& tensor);

  // rows x cols values, valid until the next call.
  std::span<const double> read(const RowSpan& rows);

  // Codes and scales of rows of a weight that has them.
  void read_codes(const RowSpan& rows, CodedRows& coded);

 private:
  void read_stored(const RowSpan& rows);

  const Checkpoint& checkpoint_;
  const TensorValues& tensor_;
  Context context_;
  ResolvedArchitecture model_;  // of the one weight
  ModelTensor matrix_;
  WeightReader reader_;
  std::vector<std::byte> stored_;
  std::vector<float> floats_;
  std::vector<double> values_;
};

// How many rows are read at once.
std::uint64_t rows_of_piece(const TensorValues& tensor);

// Calls body(first row, values) for pieces of the rows, in order.
template <typename Body>
void for_each_piece(ValueReader& reader,
                    const TensorValues& tensor,
                    const RowSpan& rows,
                    Body&& body) {
  const std::uint64_t step = rows_of_piece(tensor);
  for (std::uint64_t row = rows.begin; row < rows.end; row += step) {
    body(row, reader.read({row, std::min(rows.end, row + step)}));
  }
}

}  // namespace quantmill
