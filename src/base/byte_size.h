#pragma once

// Numbers of bytes as people write them.

#include <cstdint>
#include <string>

namespace quantmill {

// "512M", "4G", "1.5GiB", "1000000" -> bytes (K, M, G, T are powers of 1024). kUsage.
std::uint64_t parse_size(const std::string& text);
// 1536 -> "1.5 KiB".
std::string format_size(std::uint64_t bytes);

}  // namespace quantmill
