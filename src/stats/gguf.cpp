#include "stats/gguf.h"

#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "stats/byte_stream.h"

namespace quantmill {
namespace {

constexpr std::array<char, 4> kMagic{'G', 'G', 'U', 'F'};
constexpr std::uint64_t kLongestText = std::uint64_t{1} << 16;
constexpr std::uint32_t kMostDimensions = 4;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint32_t kF32 = 0;

enum ValueType : std::uint32_t {
  kUint32 = 4,
  kString = 8,
  kArray = 9,
};

// Of a value of a fixed size; nothing for text, arrays and unknown types.
std::optional<std::uint64_t> size_of_value(std::uint32_t type) {
  constexpr std::array<std::uint8_t, 13> kSizes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < kSizes.size() && kSizes[type] != 0 ? std::optional(kSizes[type]) : std::nullopt;
}

[[noreturn]] void refuse(std::string reason) {
  throw Error(ErrorCode::kInput, std::move(reason));
}

std::string read_text(ByteStream& stream) {
  const std::uint64_t at = stream.offset();
  const auto length = stream.value<std::uint64_t>();
  if (length > kLongestText) {
    refuse(fmt::format(
        "a text of {} bytes at offset {}; at most {} are read", length, at, kLongestText));
  }
  return stream.text(length);
}

void skip_array(ByteStream& stream) {
  const std::uint64_t at = stream.offset();
  const auto type = stream.value<std::uint32_t>();
  const auto count = stream.value<std::uint64_t>();
  if (type == kString) {
    for (std::uint64_t i = 0; i < count; ++i) {
      stream.skip(stream.value<std::uint64_t>());
    }
    return;
  }
  const std::optional<std::uint64_t> size = size_of_value(type);
  if (!size) {
    refuse(fmt::format("an array of type {} at offset {}, which is not known", type, at));
  }
  stream.skip(checked_multiply(count, *size).value_or(UINT64_MAX));
}

// A count of entries that take at least `smallest` bytes each.
std::uint64_t read_count(ByteStream& stream, std::uint64_t smallest, std::string_view what) {
  const auto count = stream.value<std::uint64_t>();
  if (count > stream.left() / smallest) {
    refuse(fmt::format(
        "the header speaks of {} {}, but only {} bytes follow", count, what, stream.left()));
  }
  return count;
}

// Bytes of an F32 tensor; nothing if they do not fit 64 bits.
std::optional<std::uint64_t> size_of_tensor(const GgufTensor& tensor) {
  std::optional<std::uint64_t> size = sizeof(float);
  for (const std::uint64_t dimension : tensor.dimensions) {
    size = size ? checked_multiply(*size, dimension) : size;
  }
  return size;
}

void read_key(ByteStream& stream,
              std::map<std::string, std::string>& texts,
              std::uint64_t& alignment) {
  const std::string key = read_text(stream);
  const std::uint64_t at = stream.offset();
  const auto type = stream.value<std::uint32_t>();
  if (type == kString) {
    texts[key] = read_text(stream);
  } else if (type == kArray) {
    skip_array(stream);
  } else if (type == kUint32 && key == "general.alignment") {
    alignment = stream.value<std::uint32_t>();
    if (!std::has_single_bit(alignment)) {
      refuse(fmt::format("general.alignment is {}; a power of two was expected", alignment));
    }
  } else if (const std::optional<std::uint64_t> size = size_of_value(type)) {
    stream.skip(*size);
  } else {
    refuse(
        fmt::format("'{}' has a value of type {} at offset {}, which is not known", key, type, at));
  }
}

// With the offset as stored: from the start of the data.
GgufTensor read_tensor(ByteStream& stream, const std::string& name) {
  GgufTensor tensor;
  const auto num_dimensions = stream.value<std::uint32_t>();
  if (num_dimensions > kMostDimensions) {
    refuse(fmt::format(
        "'{}' has {} dimensions; at most {} are possible", name, num_dimensions, kMostDimensions));
  }
  for (std::uint32_t d = 0; d < num_dimensions; ++d) {
    tensor.dimensions.push_back(stream.value<std::uint64_t>());
  }
  tensor.type = stream.value<std::uint32_t>();
  tensor.offset = stream.value<std::uint64_t>();
  return tensor;
}

// Makes the offset one from the start of the file.
void place_tensor(std::uint64_t start,
                  std::uint64_t file_size,
                  const std::string& name,
                  GgufTensor& tensor) {
  const std::optional<std::uint64_t> first = checked_add(start, tensor.offset);
  const std::optional<std::uint64_t> size = size_of_tensor(tensor);
  const std::optional<std::uint64_t> end =
      first && size ? checked_add(*first, *size) : std::nullopt;
  if (tensor.type == kF32 && (!end || *end > file_size)) {
    refuse(fmt::format("'{}' ends outside the file, which has {} bytes; it is cut short or damaged",
                       name,
                       file_size));
  }
  tensor.offset = first.value_or(0);
}

}  // namespace

bool GgufFile::is_gguf(const File& file) {
  std::array<char, kMagic.size()> first{};
  if (file.size_bytes() < first.size()) {
    return false;
  }
  file.read_at(0, std::as_writable_bytes(std::span(first)));
  return first == kMagic;
}

GgufFile::GgufFile(File file) : file_(std::move(file)) {
  ByteStream stream(file_);
  stream.skip(kMagic.size());
  const auto version = stream.value<std::uint32_t>();
  if (version != 2 && version != 3) {
    refuse(fmt::format("GGUF of version {}; versions 2 and 3 are read, in little-endian order",
                       version));
  }
  // A tensor: name's length, number of dimensions, type, offset. A key: its length, type, value.
  const std::uint64_t num_tensors = read_count(stream, 8 + 4 + 4 + 8, "tensors");
  const std::uint64_t num_keys = read_count(stream, 8 + 4 + 1, "keys");
  std::uint64_t alignment = kDefaultAlignment;
  for (std::uint64_t i = 0; i < num_keys; ++i) {
    read_key(stream, texts_, alignment);
  }
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    const std::string name = read_text(stream);
    if (!tensors_.emplace(name, read_tensor(stream, name)).second) {
      refuse(fmt::format("there are two tensors '{}'", name));
    }
  }
  const std::uint64_t start = divide_up(stream.offset(), alignment) * alignment;
  for (auto& [name, tensor] : tensors_) {
    place_tensor(start, file_.size_bytes(), name, tensor);
  }
}

std::vector<float> GgufFile::read(const std::string& name) const {
  const GgufTensor& tensor = tensors_.at(name);
  if (tensor.type != kF32) {
    refuse(fmt::format("'{}' is of ggml's type {}; 0 (F32) was expected", name, tensor.type));
  }
  std::vector<float> values(*size_of_tensor(tensor) / sizeof(float));
  file_.read_at(tensor.offset, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace quantmill
