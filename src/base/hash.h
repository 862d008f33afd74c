#pragma once

// XXH3-128 (xxHash 0.8, canonical hexadecimal as `xxh128sum` prints it): integrity of files, not
// security.

#include <filesystem>
#include <string>
#include <string_view>

namespace quantmill {

// 32 hexadecimal digits. kIo if the file can't be read.
std::string hash_file(const std::filesystem::path& path);
std::string hash_text(std::string_view text);

}  // namespace quantmill
