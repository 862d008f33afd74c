#pragma once

// Overflow-checked size arithmetic and little-endian loads and stores for bytes that come from
// outside.

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"

namespace quantmill {

static_assert(std::endian::native == std::endian::little,
              "files are little-endian, and so is every machine that quantmill supports");

// a * b, or nothing if it does not fit.
constexpr std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) {
    return std::nullopt;
  }
  return result;
}

// a + b, or nothing if it does not fit.
constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) {
    return std::nullopt;
  }
  return result;
}

// value / by, rounded up; by is not 0.
constexpr std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) {
  return value / by + (value % by != 0 ? 1 : 0);
}

// The same value in another integer type; kInternal if it does not fit.
template <std::integral To, std::integral From>
constexpr To narrow(From value) {
  if (!std::in_range<To>(value)) {
    throw Error(ErrorCode::kInternal, "internal fault: an integer does not fit its type");
  }
  return static_cast<To>(value);
}

// Reads a little-endian value from the first sizeof(T) bytes; the caller has checked the size.
template <typename T>
T load_little_endian(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// std::memcpy, which may not be given a null pointer, not even for no bytes: that of an empty
// vector.
inline void copy_bytes(void* to, const void* from, std::size_t num_bytes) {
  if (num_bytes > 0) {
    std::memcpy(to, from, num_bytes);
  }
}

}  // namespace quantmill
