#pragma once

// The header of a safetensors file, parsed and printed: pure functions on bytes, safe on any bytes.
// File layout: u64 little-endian header length N, N bytes of JSON padded with spaces, then the
// tensors' bytes.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace quantmill {

// The format's own limit on N.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;  // row-major; empty for a scalar
  std::uint64_t begin = 0;           // offsets into the data section, end exclusive
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t size_bytes() const { return end - begin; }

  [[nodiscard]] std::uint64_t num_elements() const;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  // in order of `begin`
  std::uint64_t data_begin = 0;      // file offset of the data section: 8 + N
};

// Parses the JSON text (N bytes, without the length) of a file of `file_bytes` bytes.
// Fields of a tensor other than dtype, shape and data_offsets are passed over; tensors without
// elements are legal. Errors, kInput: not JSON, wrong types, unknown dtype (named), duplicate
// names, shape product overflow, byte count that differs from dtype x shape, overlap, hole, offsets
// outside the file, bytes after the last tensor.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t file_bytes);

// Length, JSON and padding (to 8 bytes) for these tensors, as the safetensors library (0.8) prints
// them: compact, without
// __metadata__ if it is empty. `begin` and `end` must be set, without holes, in order.
// Errors, kInput: a name that is not UTF-8, more than kMaxHeaderBytes.
std::string print_safetensors_header(const std::map<std::string, std::string>& metadata,
                                     const std::vector<TensorEntry>& tensors);

// Prints the same piece by piece, for callers that do not hold all tensors at once. Errors as
// print_safetensors_header, and kInput where the bytes of all tensors overflow.
class SafetensorsHeaderPrinter {
 public:
  explicit SafetensorsHeaderPrinter(const std::map<std::string, std::string>& metadata);

  // The next tensor; it lies where the one before it ends.
  void add(std::string_view name, DType dtype, std::span<const std::uint64_t> shape);

  // Where the next one begins in the data section.
  [[nodiscard]] std::uint64_t end() const noexcept { return end_; }

  // Once.
  std::string take();

 private:
  std::string bytes_ = std::string(sizeof(std::uint64_t), '\0');  // with room for the length
  std::uint64_t end_ = 0;
};

// Bytes of a dtype and shape; kInput on overflow, or if 4- and 6-bit elements do not fill whole
// bytes.
std::uint64_t tensor_size_bytes(DType dtype, std::span<const std::uint64_t> shape);

}  // namespace quantmill
