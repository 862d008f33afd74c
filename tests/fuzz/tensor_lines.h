#pragma once

// Tensors of a checkpoint as text, for targets that look at names, types and shapes: a line each,
// "NAME DTYPE ROWS COLUMNS …". Lines that say no such thing are left out.

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/reader.h"

namespace quantmill::fuzz {

inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

inline std::optional<SourceTensor> tensor_of(std::string_view line) {
  const std::vector<std::string_view> words = split(line, ' ');
  if (words.size() < 2 || words.size() > 10) {
    return std::nullopt;
  }
  SourceTensor tensor;
  tensor.entry.name = words[0];
  const std::optional<DType> dtype = dtype_from_name(words[1]);
  if (!dtype) {
    return std::nullopt;
  }
  tensor.entry.dtype = *dtype;
  std::uint64_t bytes = dtype_bits(*dtype);
  for (const std::string_view word : std::span(words).subspan(2)) {
    std::uint32_t size = 0;
    std::from_chars(word.data(), word.data() + word.size(), size);
    tensor.entry.shape.push_back(size);
    // As safetensors headers are checked: the bits of a tensor are a number.
    if (__builtin_mul_overflow(bytes, std::uint64_t{size}, &bytes)) {
      return std::nullopt;
    }
  }
  tensor.entry.end = bytes / 8;
  return tensor;
}

// Of distinct names, in their order, as a checkpoint has them.
inline std::vector<SourceTensor> tensors_of(std::string_view lines) {
  std::vector<SourceTensor> tensors;
  for (const std::string_view line : split(lines, '\n')) {
    if (std::optional<SourceTensor> tensor = tensor_of(line)) {
      tensors.push_back(std::move(*tensor));
    }
  }
  const auto comes_before = [](const SourceTensor& a, const SourceTensor& b) {
    return a.entry.name < b.entry.name;
  };
  const auto are_same = [](const SourceTensor& a, const SourceTensor& b) {
    return a.entry.name == b.entry.name;
  };
  std::stable_sort(tensors.begin(), tensors.end(), comes_before);
  tensors.erase(std::unique(tensors.begin(), tensors.end(), are_same), tensors.end());
  return tensors;
}

}  // namespace quantmill::fuzz
