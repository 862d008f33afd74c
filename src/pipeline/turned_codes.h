#pragma once

// Codes that are stored as those of the transposed weight: the released gpt-oss stores [out, in]
// for a weight [in, out], AutoAWQ, GPTQ and Quark store [in, out] for a weight [out, in]. A row of
// the weight is a column of the codes; only the stretch from the first to the last wanted one is
// read of every stored row. Errors: kIo.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "kernels/matrix.h"
#include "plan/source_weights.h"

namespace quantmill {

// Reads rows [first_row, first_row + num_rows) of a matrix whose rows have `row_bytes`, of each the
// bytes [begin, begin + size), one row after the other.
void read_stretches(const Checkpoint& checkpoint,
                    const SourceTensor& source,
                    std::uint64_t row_bytes,
                    std::uint64_t first_row,
                    std::uint64_t num_rows,
                    std::uint64_t begin,
                    std::span<std::byte> bytes);

// Rows [begin, begin + values.rows) of slice `slice` of a turned MX weight of [.., cols, rows]
// values, all its columns: values.cols is the number of stored rows, `width` their length in
// elements.
void read_turned_mx(const Context& context,
                    const Checkpoint& checkpoint,
                    const SourceWeight& weight,
                    std::uint64_t slice,
                    std::uint64_t width,
                    std::uint64_t begin,
                    FloatMatrix values);

// Columns `columns` of a plain matrix `source`, as rows: bytes is [columns, stored rows] elements.
void read_columns(const Checkpoint& checkpoint,
                  const SourceTensor& source,
                  std::span<const std::uint64_t> columns,
                  std::vector<std::byte>& bytes);

// Columns of a matrix of packed integers, as rows: codes is [columns, code rows]. `packs_rows`:
// words hold codes of one column, of several rows; else codes of one row.
void read_integer_columns(const Context& context,
                          const Checkpoint& checkpoint,
                          const SourceTensor& source,
                          const IntPacking& packing,
                          bool packs_rows,
                          std::span<const std::uint64_t> columns,
                          std::vector<std::int8_t>& codes);

// The group of each column of a weight that has column_groups; empty where groups are columns side
// by side. kInput for a group that there is not.
std::vector<std::uint32_t> read_column_groups(const Checkpoint& checkpoint,
                                              const SourceWeight& weight);

}  // namespace quantmill
