#pragma once

// Writes small safetensors files for tests, by hand and independent of the code under test.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace quantmill::test {

struct TinyTensor {
  std::string name;
  std::string dtype;  // as in the header
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;
};

// A BF16 tensor whose values are truncated from float.
TinyTensor bf16_tensor(std::string name,
                       std::vector<std::uint64_t> shape,
                       const std::vector<float>& values);

// Tensors one after the other, in this order, with {"format":"pt"}.
void write_tiny_safetensors(const std::filesystem::path& file,
                            const std::vector<TinyTensor>& tensors);

// Any header text and any data, right or wrong.
void write_raw_safetensors(const std::filesystem::path& file,
                           const std::string& json,
                           const std::string& data);

// Text into a file.
void write_text(const std::filesystem::path& file, const std::string& text);

// All bytes of a file.
std::string read_text(const std::filesystem::path& file);

}  // namespace quantmill::test
