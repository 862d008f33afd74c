#pragma once

// Reads the header of GGUF files (ggml-org/ggml, docs/gguf.md, versions 2 and 3) and their F32
// tensors. Not for what the tensors mean.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"

namespace quantmill {

struct GgufTensor {
  std::vector<std::uint64_t> dimensions;  // as stored: the one that varies fastest first
  std::uint32_t type = 0;                 // of ggml; 0 is F32
  std::uint64_t offset = 0;               // of its first byte, in the file
};

// An open file. Errors are kInput, and name the offset.
class GgufFile {
 public:
  // Whether the file begins as GGUF files do.
  static bool is_gguf(const File& file);

  // Reads the header. Refused: another version, a header that ends too early, names of more than 64
  // KiB, more entries than the file has room for, nested arrays, two tensors of one name, a tensor
  // outside the file.
  explicit GgufFile(File file);

  // Keys whose value is a text; other values are skipped.
  [[nodiscard]] const std::map<std::string, std::string>& texts() const { return texts_; }

  [[nodiscard]] const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }

  // All values of a tensor of type F32; kInput naming it if it has another.
  [[nodiscard]] std::vector<float> read(const std::string& name) const;

 private:
  File file_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, GgufTensor> tensors_;
};

}  // namespace quantmill
