#pragma once

// Bytes to send: different for each sender, and not of a short period.

#include <cstddef>
#include <vector>

namespace quantmill::test {

inline std::vector<std::byte> numbered_bytes(std::size_t size_bytes, std::size_t sender) {
  std::vector<std::byte> bytes(size_bytes);
  for (std::size_t i = 0; i < size_bytes; ++i) {
    bytes[i] = static_cast<std::byte>((i * i + i / 251 + 17 * sender + 1) & 0xff);
  }
  return bytes;
}

}  // namespace quantmill::test
