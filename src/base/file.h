#pragma once

// POSIX files with errors that name the path: read and write at an offset, fsync, rename, listing.
// Not for formats: those are in checkpoint/ and stats/.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/handle.h"

namespace quantmill {

struct DescriptorTraits {
  using Handle = int;

  static Handle null() noexcept { return -1; }

  static void close(Handle descriptor) noexcept;
};

// An open file. Thread-safe: every access names its offset. All errors are kIo, except where said.
class File {
 public:
  static File open_to_read(const std::filesystem::path& path);
  // Creates or opens without truncating, mode 0666 less the umask.
  static File open_to_write(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  [[nodiscard]] std::uint64_t size_bytes() const;
  // When its content was last changed, in nanoseconds since 1970. Of the file that is open,
  // whatever its name means by now.
  [[nodiscard]] std::int64_t changed_ns() const;

  // Whether parts of it were never written (lseek, SEEK_HOLE); false where the system does not
  // tell.
  [[nodiscard]] bool has_hole() const;

  // Fills `out` from `offset`; kIo naming the path and offset if the file ends before.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  // Asks the system to bring these bytes into memory while the caller does something else. Advice:
  // nothing fails.
  void expect_read(std::uint64_t offset, std::uint64_t size_bytes) const noexcept;
  // Lets the system forget whole pages of these bytes, as far as they are on the disk; 0 bytes: to
  // the end. Advice: nothing fails.
  void drop_cached(std::uint64_t offset, std::uint64_t size_bytes) const noexcept;
  // Writes all of `data` at `offset`; the error says how much was to be written and where,
  // and on a full disk how much is free.
  void write_at(std::uint64_t offset, std::span<const std::byte> data) const;
  // Sets the size and reserves the blocks where the file system can (falls back to a sparse file).
  void reserve(std::uint64_t size_bytes) const;
  // Asks the system to begin writing these bytes to the disk, so that sync() has less to wait for.
  // Advice: nothing fails.
  void begin_sync(std::uint64_t offset, std::uint64_t size_bytes) const noexcept;
  // Waits until these bytes are on the disk or lost. What is lost counts as told to this file:
  // sync() of another one, opened before, tells it. Nothing fails.
  void wait_for_sync(std::uint64_t offset, std::uint64_t size_bytes) const noexcept;
  void sync() const;

 private:
  File(std::filesystem::path path, int descriptor);

  std::filesystem::path path_;
  UniqueHandle<DescriptorTraits> descriptor_;
};

// The whole file as text. kInput if it is larger than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// Writes through a temporary name in the same folder: write, fsync, rename. Never leaves half a
// file under `path`.
void write_text_file(const std::filesystem::path& path, std::string_view text);

// Copies bytes (not links: what a symbolic link points to) and syncs the copy.
void copy_file_synced(const std::filesystem::path& from, const std::filesystem::path& to);

// fsync of a folder, so that names created or renamed in it survive a power loss.
void sync_folder(const std::filesystem::path& folder);

// Every regular file below `folder`, relative, sorted. Links are followed, but not to a folder that
// is being listed already; a link that leads nowhere is listed, so that opening it says so. kInput
// if `folder` is none.
std::vector<std::filesystem::path> list_files(const std::filesystem::path& folder);

}  // namespace quantmill
