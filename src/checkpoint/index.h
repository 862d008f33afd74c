#pragma once

// model.safetensors.index.json, parsed: a pure function on text, safe on any text.
// Printing one is in layout.h.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quantmill {

constexpr std::string_view kIndexFileName = "model.safetensors.index.json";

struct CheckpointIndex {
  std::vector<std::pair<std::string, std::string>> weight_map;  // tensor, file; as in the text
  std::vector<std::string> file_names;                          // each once, sorted
};

// File names are relative to the index, below its folder, and end in .safetensors. The rest of the
// text ("metadata") is passed over: many indexes in use have a wrong total_size. Errors, kInput:
// not JSON, no weight_map or an empty one, wrong types, a tensor named twice, a file name that
// leaves the folder or is no safetensors file.
CheckpointIndex parse_checkpoint_index(std::string_view json);

}  // namespace quantmill
