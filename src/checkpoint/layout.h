#pragma once

// Where each tensor of an output checkpoint goes: shard files, offsets, headers and the index, from
// names and sizes alone.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace quantmill {

struct OutputShard {
  std::string file_name;
  std::string header;            // length, JSON and padding: the first bytes of the file
  std::uint64_t data_bytes = 0;  // that follow

  [[nodiscard]] std::uint64_t size_bytes() const { return header.size() + data_bytes; }

  // In file order; read from the header each time.
  [[nodiscard]] std::vector<TensorEntry> tensors() const;
};

// A tensor to place; `file_name` is the shard it should live in (the source's), text that outlives
// the placing.
struct TensorToPlace {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::string_view file_name;
  bool with_previous = false;  // never cut off from the tensor before it (a scale from its codes)
};

// Where a tensor lies.
struct PlaceInShard {
  std::size_t shard = 0;
  std::uint64_t file_offset = 0;
  std::uint64_t size_bytes = 0;
};

struct PlacedTensors {
  std::vector<OutputShard> shards;
  std::vector<PlaceInShard> places;  // one per tensor, in the given order
};

// Places tensors into shards. With max_shard_bytes == 0 each stays in its `file_name`, files in
// order of first use; otherwise shards are filled in the given order up to that many bytes of
// tensors (a larger tensor gets its own) and named model-00001-of-0000N.safetensors
// (model.safetensors if there is one). Inside a shard tensors are ordered as the safetensors
// library does: by its enum Dtype, largest alignment first, then by name, so every tensor is
// aligned. metadata is {"format": "pt"}. Errors, kInput: two tensors of one name, a size that
// overflows, a header longer than the format allows.
PlacedTensors place_tensors(std::vector<TensorToPlace> tensors, std::uint64_t max_shard_bytes);

// model.safetensors.index.json: total_size (bytes of all tensors) and weight_map, names sorted, 2
// spaces, ASCII, final newline, as Python's json.dumps prints it for Hugging Face's libraries.
std::string print_index(const std::vector<OutputShard>& shards);

}  // namespace quantmill
