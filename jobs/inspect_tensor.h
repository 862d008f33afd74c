#pragma once

// One tensor of a checkpoint as `quantmill inspect --tensor` shows it: statistics and values.

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "checkpoint/reader.h"

namespace quantmill {

struct TensorRequest {
  std::string name;
  // First row and one past the last, of the tensor seen as a matrix [elements / last dimension,
  // last dimension]. "A:B", "A:", ":B" or "A"; empty is all rows in JSON, the first few in text.
  std::optional<std::string> rows;
  bool as_json = false;
  bool histogram = false;  // of all values, in text too
  bool blocks = false;     // codes and scales of the rows, as they are stored
};

// Writes shape, dtype, statistics over the whole tensor and the values of the chosen rows to `out`.
// A U8 tensor NAME [N, K/2] with U8 NAME_scale [N, K/32] beside it is shown as the MXFP4 weight [N,
// K] that it stands for. Reads the tensor in pieces of rows; JSON numbers have 9 significant digits
// (17 for F64), so they are read back exactly. Errors, kInput: no such tensor, a dtype that cannot
// be shown. kUsage: rows or blocks that the tensor does not have.
void show_tensor(const Checkpoint& checkpoint, const TensorRequest& request, std::ostream& out);

}  // namespace quantmill
