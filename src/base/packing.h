#pragma once

// Numbers, texts, vectors of numbers and maps one after the other, between processes of this
// program on machines of one kind. Not for files: nothing here says what the bytes mean.
// Packer and Unpacker have the same functions, so that one list of a type's fields serves both:
//   template <typename Archive, typename Size>  // const Size where it is packed
//   void transfer(Archive& archive, Size& size) { archive.value(size.rows);
//   archive.value(size.cols); }

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/error.h"

namespace quantmill {

class Packer {
 public:
  template <typename T>
  void value(const T& number) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    add(&number, sizeof(T));
  }

  // `last` is the largest that there is.
  template <typename Enum>
  void enumeration(const Enum& choice, Enum /*last*/) {
    value(choice);
  }

  // A string or a vector of numbers.
  template <typename Sequence>
  void sequence(const Sequence& values) {
    value(values.size());
    add(values.data(), values.size() * sizeof(values[0]));
  }

  // A map from strings; row(archive, mapped) transfers what is mapped to.
  template <typename Map, typename Row>
  void map(const Map& rows, Row&& row) {
    value(rows.size());
    for (const auto& [key, mapped] : rows) {
      sequence(key);
      row(*this, mapped);
    }
  }

  [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void add(const void* from, std::size_t size_bytes) {
    const std::size_t old = bytes_.size();
    bytes_.resize(old + size_bytes);
    copy_bytes(bytes_.data() + old, from, size_bytes);
  }

  std::vector<std::byte> bytes_;
};

// Takes what was packed, in the same order. kInternal if there is less, or another choice than an
// enumeration has; no claim of the bytes makes it allocate more than they hold.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  void value(T& number) {
    if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t byte = 0;
      value(byte);
      number = byte != 0;
    } else {
      std::memcpy(&number, take(sizeof(T)).data(), sizeof(T));
    }
  }

  template <typename Enum>
  void enumeration(Enum& choice, Enum last) {
    value(choice);
    check_invariant(choice <= last, "packed bytes have a choice that does not exist");
  }

  template <typename Sequence>
  void sequence(Sequence& values) {
    std::size_t size = 0;
    value(size);
    check_invariant(size <= bytes_.size() / sizeof(values[0]), kCutShort);
    values.resize(size);
    copy_bytes(values.data(), take(size * sizeof(values[0])).data(), size * sizeof(values[0]));
  }

  template <typename Map, typename Row>
  void map(Map& rows, Row&& row) {
    std::size_t left = 0;
    for (value(left); left > 0; --left) {
      typename Map::key_type key;
      sequence(key);
      row(*this, rows[std::move(key)]);
    }
  }

  [[nodiscard]] bool is_at_end() const noexcept { return bytes_.empty(); }

 private:
  static constexpr const char* kCutShort = "packed bytes are cut short";

  std::span<const std::byte> take(std::size_t size_bytes) {
    check_invariant(size_bytes <= bytes_.size(), kCutShort);
    const auto taken = bytes_.first(size_bytes);
    bytes_ = bytes_.subspan(size_bytes);
    return taken;
  }

  std::span<const std::byte> bytes_;
};

}  // namespace quantmill
