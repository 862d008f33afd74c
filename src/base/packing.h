#pragma once

// Numbers, texts and vectors of numbers one after the other, between processes of this program on
// machines of one kind. Not for files: nothing here says what the bytes mean.

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "base/checked.h"
#include "base/error.h"

namespace quantmill {

template <typename T>
void pack(std::vector<std::byte>& bytes, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::size_t old = bytes.size();
  bytes.resize(old + sizeof(T));
  std::memcpy(bytes.data() + old, &value, sizeof(T));
}

// The number of elements of a string or a vector of numbers, then these.
template <typename Sequence>
void pack_sequence(std::vector<std::byte>& bytes, const Sequence& values) {
  pack(bytes, values.size());
  const std::size_t old = bytes.size();
  const std::size_t size_bytes = values.size() * sizeof(values[0]);
  bytes.resize(old + size_bytes);
  copy_bytes(bytes.data() + old, values.data(), size_bytes);
}

// Takes what was packed, in the same order. kInternal if there is less; no claim of the bytes makes
// it allocate more than they hold.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, take_bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }

  template <typename Sequence>
  Sequence take_sequence() {
    Sequence values;
    const auto size = take<std::size_t>();
    check_invariant(size <= bytes_.size() / sizeof(values[0]), kCutShort);
    values.resize(size);
    const std::size_t size_bytes = size * sizeof(values[0]);
    copy_bytes(values.data(), take_bytes(size_bytes).data(), size_bytes);
    return values;
  }

  [[nodiscard]] bool is_at_end() const noexcept { return bytes_.empty(); }

 private:
  static constexpr const char* kCutShort = "packed bytes are cut short";

  std::span<const std::byte> take_bytes(std::size_t size_bytes) {
    check_invariant(size_bytes <= bytes_.size(), kCutShort);
    const auto taken = bytes_.first(size_bytes);
    bytes_ = bytes_.subspan(size_bytes);
    return taken;
  }

  std::span<const std::byte> bytes_;
};

}  // namespace quantmill
