// Input: the size of the data section (8 bytes, little-endian), then the JSON of a header.

#include <string>

#include "base/checked.h"
#include "checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace quantmill {
namespace {

bool is_same(const TensorEntry& left, const TensorEntry& right) {
  return left.name == right.name && left.dtype == right.dtype && left.shape == right.shape &&
         left.begin == right.begin && left.end == right.end;
}

void check(std::string_view json, std::uint64_t data_bytes) {
  const std::optional<std::uint64_t> file_bytes = checked_add(8 + json.size(), data_bytes);
  if (!file_bytes) {
    return;
  }
  const SafetensorsHeader header = parse_safetensors_header(json, *file_bytes);
  std::uint64_t covered = 0;
  for (const TensorEntry& tensor : header.tensors) {
    fuzz::require(tensor.begin == covered, "tensors cover the data without holes");
    covered = tensor.end;
    fuzz::require(tensor.num_elements() == 0 || tensor.size_bytes() > 0, "elements have bytes");
  }
  fuzz::require(covered == data_bytes, "tensors cover the data to its end");

  // What is printed for a header that was read is read back as the same.
  const std::string printed = print_safetensors_header(header.metadata, header.tensors);
  const SafetensorsHeader again =
      parse_safetensors_header(std::string_view(printed).substr(8), printed.size() + data_bytes);
  fuzz::require(again.metadata == header.metadata, "metadata survives printing");
  fuzz::require(again.tensors.size() == header.tensors.size(), "tensors survive printing");
  for (std::size_t i = 0; i < again.tensors.size(); ++i) {
    fuzz::require(is_same(again.tensors[i], header.tensors[i]), "a tensor survives printing");
  }
}

}  // namespace
}  // namespace quantmill

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size >= 8) {
    const auto data_bytes = quantmill::load_little_endian<std::uint64_t>(
        std::as_bytes(std::span<const std::uint8_t>(data, 8)));
    quantmill::fuzz::only_input_errors(
        [&] { quantmill::check(quantmill::fuzz::as_text(data + 8, size - 8), data_bytes); });
  }
  return 0;
}
