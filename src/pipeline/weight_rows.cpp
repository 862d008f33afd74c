#include "pipeline/weight_rows.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace quantmill {
namespace {

std::uint64_t element_bytes(const Checkpoint& checkpoint, const ModelTensor& tensor) {
  return dtype_bits(checkpoint.tensors()[tensor.stored].entry.dtype) / 8;
}

// Rows of a matrix that is stored as [in, out] are its columns: the stretch from the first to the
// last of them is read from every stored row.
void read_columns(const Checkpoint& checkpoint,
                  const ModelTensor& tensor,
                  const std::vector<std::uint64_t>& rows,
                  std::span<std::byte> bytes) {
  const std::uint64_t element = element_bytes(checkpoint, tensor);
  const std::uint64_t in = tensor.in_features();
  const auto [first, last] = std::minmax_element(rows.begin(), rows.end());
  std::vector<std::byte> stretch((*last - *first + 1) * element);
  for (std::uint64_t feature = 0; feature < in; ++feature) {
    const std::uint64_t offset = (feature * tensor.out_features() + *first) * element;
    read_stored(checkpoint, tensor, offset, stretch);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(
          &bytes[(i * in + feature) * element], &stretch[(rows[i] - *first) * element], element);
    }
  }
}

}  // namespace

std::uint64_t row_bytes(const Checkpoint& checkpoint, const ModelTensor& tensor) {
  const std::uint64_t elements =
      tensor.role == TensorRole::kLinear ? tensor.in_features() : tensor.num_elements();
  return elements * element_bytes(checkpoint, tensor);
}

void read_stored(const Checkpoint& checkpoint,
                 const ModelTensor& tensor,
                 std::uint64_t begin,
                 std::span<std::byte> bytes) {
  const SourceTensor& source = checkpoint.tensors()[tensor.stored];
  const std::uint64_t slice_bytes = tensor.num_elements() * element_bytes(checkpoint, tensor);
  checkpoint.read(source, tensor.slice.value_or(0) * slice_bytes + begin, bytes);
}

void read_rows(const Checkpoint& checkpoint,
               const ModelTensor& tensor,
               const RowRange& rows,
               std::uint64_t begin,
               std::uint64_t step,
               std::span<std::byte> bytes) {
  const std::uint64_t size = row_bytes(checkpoint, tensor);
  const std::uint64_t count = size == 0 ? 0 : bytes.size() / size;
  check_invariant(count * size == bytes.size(), "a buffer for a part of a row");
  std::vector<std::uint64_t> wanted;
  for (std::uint64_t i = 0; i < count; ++i) {
    wanted.push_back(rows.row(begin + i * step));
  }
  if (tensor.transposed && count > 0) {
    read_columns(checkpoint, tensor, wanted, bytes);
    return;
  }
  for (std::uint64_t i = 0; i < count;) {
    std::uint64_t run = 1;
    while (i + run < count && wanted[i + run] == wanted[i] + run) {
      ++run;
    }
    read_stored(checkpoint, tensor, wanted[i] * size, bytes.subspan(i * size, run * size));
    i += run;
  }
}

RowRange all_rows(const ModelTensor& tensor) {
  return {0, 1, tensor.out_features(), tensor.out_features()};
}

}  // namespace quantmill
