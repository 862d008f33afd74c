#pragma once

// Reads uncompressed zip archives; the only place that sees libzip. Not for the meaning of the
// entries.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/handle.h"

struct zip;

namespace quantmill {

struct ZipTraits {
  using Handle = zip*;

  static Handle null() noexcept { return nullptr; }

  static void close(Handle archive) noexcept;
};

// An open archive. Errors are kInput; callers add the file's name.
class ZipArchive {
 public:
  // Errors: no central directory (a file that is cut short), two entries of the same name.
  explicit ZipArchive(const std::filesystem::path& file);
  // `bytes` must outlive the archive.
  explicit ZipArchive(std::span<const std::byte> bytes);

  [[nodiscard]] bool has(const std::string& entry) const { return entries_.contains(entry); }

  // Names of all entries, sorted, with their index.
  [[nodiscard]] const std::map<std::string, std::uint64_t>& entries() const { return entries_; }

  // All bytes of an entry, whose CRC-32 must match. Errors: no such entry, compressed or encrypted
  // (so that what is allocated is never more than the file has), larger than `max_bytes`, damaged.
  // All reads together may not exceed the archive's size: entries that overlap are refused.
  std::vector<std::byte> read(const std::string& entry, std::uint64_t max_bytes);

 private:
  void list_entries();

  UniqueHandle<ZipTraits> archive_;
  std::uint64_t bytes_left_ = 0;  // of the archive, not yet read
  std::map<std::string, std::uint64_t> entries_;
};

}  // namespace quantmill
