#pragma once

// The structure of a checkpoint in layout qwix: its tensors are those that qwix_abstract.json
// promises, and its scales are scales.

#include <filesystem>
#include <string>
#include <vector>

namespace quantmill {

struct QwixStructure {
  std::size_t num_tensors = 0;
  std::size_t num_files = 0;
  std::size_t num_quantized = 0;      // parameters
  std::vector<std::string> findings;  // what is wrong
};

// Errors: what Checkpoint::open refuses; kInput: a qwix_abstract.json that is missing or no such
// file.
QwixStructure check_qwix_structure(const std::filesystem::path& folder);

}  // namespace quantmill
