#pragma once

// XXH3 (xxHash 0.8): integrity of files, not security.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace quantmill {

// XXH3-128, 32 hexadecimal digits as `xxh128sum` prints them. kIo if the file can't be read.
// `drops`: lets the system forget what was read (File::drop_cached).
std::string hash_file(const std::filesystem::path& path, bool drops = false);
std::string hash_text(std::string_view text);

// XXH3-64.
std::uint64_t hash_bytes(std::span<const std::byte> bytes);

}  // namespace quantmill
