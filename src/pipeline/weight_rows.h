#pragma once

// Reads rows of a linear as the model sees it, [out, in], however it is stored: a slice of a larger
// tensor, transposed, rows that lie apart.

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/reader.h"
#include "plan/architecture.h"

namespace quantmill {

// Bytes of one row [in] of a linear, or of a row as stored of any other tensor or slice.
std::uint64_t row_bytes(const Checkpoint& checkpoint, const ModelTensor& tensor);

// Bytes of a tensor's or slice's first `begin` … as they are stored, from byte `begin` of it. kIo.
void read_stored(const Checkpoint& checkpoint,
                 const ModelTensor& tensor,
                 std::uint64_t begin,
                 std::span<std::byte> bytes);

// Rows number begin, begin + step, … of `rows`, one after the other, as many as `bytes` holds.
// Elements stay in their stored type. Reading rows of a linear that is stored transposed takes one
// read per column. kIo.
void read_rows(const Checkpoint& checkpoint,
               const ModelTensor& tensor,
               const RowRange& rows,
               std::uint64_t begin,
               std::uint64_t step,
               std::span<std::byte> bytes);

// All rows of a linear.
RowRange all_rows(const ModelTensor& tensor);

}  // namespace quantmill
