#pragma once

// A file from front to back, in little-endian values. For headers that say nowhere how long they
// are.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/file.h"

namespace quantmill {

// Errors are kInput naming the offset where the file ended too early. `file` must outlive it.
class ByteStream {
 public:
  explicit ByteStream(const File& file) : file_(file), size_(file.size_bytes()) {}

  // Of the next byte.
  [[nodiscard]] std::uint64_t offset() const { return offset_; }

  // Bytes up to the end of the file.
  [[nodiscard]] std::uint64_t left() const { return size_ - offset_; }

  template <typename T>
  T value() {
    require(sizeof(T));
    if (offset_ < start_ || offset_ + sizeof(T) > start_ + buffer_.size()) {
      start_ = offset_;
      buffer_.resize(std::min<std::uint64_t>(left(), kBuffered));
      file_.read_at(start_, buffer_);
    }
    const T result = load_little_endian<T>(std::span(buffer_).subspan(offset_ - start_, sizeof(T)));
    offset_ += sizeof(T);
    return result;
  }

  // `count` bytes; the caller has limited them.
  std::string text(std::uint64_t count) {
    require(count);
    std::string result(count, '\0');
    file_.read_at(offset_, std::as_writable_bytes(std::span(result)));
    offset_ += count;
    return result;
  }

  std::vector<float> floats(std::uint64_t count) {
    require(checked_multiply(count, sizeof(float)).value_or(UINT64_MAX));
    std::vector<float> result(count);
    file_.read_at(offset_, std::as_writable_bytes(std::span(result)));
    offset_ += count * sizeof(float);
    return result;
  }

  void skip(std::uint64_t count) {
    require(count);
    offset_ += count;
  }

 private:
  static constexpr std::uint64_t kBuffered = std::uint64_t{1} << 16;

  void require(std::uint64_t count) const;

  const File& file_;
  std::uint64_t size_;
  std::uint64_t offset_ = 0;
  std::uint64_t start_ = 0;  // of buffer_, in the file
  std::vector<std::byte> buffer_;
};

}  // namespace quantmill
