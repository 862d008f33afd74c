#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/work_times.h"

namespace quantmill {

namespace {

// Enough to keep a disk or a network file system busy, small beside any memory limit.
constexpr std::size_t kCopyChunkBytes = std::size_t{4} << 20;

// A folder tree with more files than this is a loop of links that multiplies, not a checkpoint.
constexpr std::size_t kMaxListedFiles = 1'000'000;

std::string error_text(int error_number) {
  return std::generic_category().message(error_number);
}

// For a failed write: the reason and, on a full disk, how much there is.
std::string write_error_text(int error_number, int descriptor) {
  std::string text = error_text(error_number);

  struct statvfs status {};

  if (error_number == ENOSPC && ::fstatvfs(descriptor, &status) == 0) {
    text += fmt::format("; {} bytes are free there",
                        std::uint64_t{status.f_bavail} * std::uint64_t{status.f_frsize});
  }
  return text;
}

[[noreturn]] void throw_io(const char* action, const std::filesystem::path& path) {
  const int error_number = errno;
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", action, path.string(), error_text(error_number)));
}

int open_descriptor(const std::filesystem::path& path, int flags) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

void sync_descriptor(int descriptor, const std::filesystem::path& path) {
  int result = 0;
  do {
    result = ::fsync(descriptor);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    throw_io("sync", path);
  }
}

off_t file_offset(std::uint64_t offset) {
  return narrow<off_t>(offset);
}

// Which folder a path leads to, whatever its name.
struct FolderIdentity {
  dev_t device;
  ino_t inode;

  friend bool operator==(const FolderIdentity&, const FolderIdentity&) = default;
};

FolderIdentity folder_identity(const std::filesystem::path& folder) {
  struct stat status {};

  if (::stat(folder.c_str(), &status) != 0) {
    throw_io("look at", folder);
  }
  return {status.st_dev, status.st_ino};
}

// Adds the files below `root`/`below`; `parents` are the folders on the way there, so that a link
// to one of them ends.
void list_files_below(const std::filesystem::path& root,
                      const std::filesystem::path& below,
                      std::vector<FolderIdentity>& parents,
                      std::vector<std::filesystem::path>& files) {
  const std::filesystem::path folder = below.empty() ? root : root / below;
  const FolderIdentity identity = folder_identity(folder);
  if (std::find(parents.begin(), parents.end(), identity) != parents.end()) {
    return;
  }
  parents.push_back(identity);
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::filesystem::path name = below / entry->path().filename();
    std::error_code status_error;
    const std::filesystem::file_status status = entry->status(status_error);
    if (std::filesystem::is_directory(status)) {
      list_files_below(root, name, parents, files);
    } else if (std::filesystem::is_regular_file(status) || entry->is_symlink(status_error)) {
      // A link that leads nowhere is listed: whoever opens it says so, instead of losing it
      // silently.
      if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) {
        files.push_back(name);
      }
    }
    if (files.size() > kMaxListedFiles) {
      throw Error(ErrorCode::kInput,
                  fmt::format("{} holds more than {} files; give a folder with one checkpoint",
                              root.string(),
                              kMaxListedFiles));
    }
  }
  if (error) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot list {}: {}", folder.string(), error.message()));
  }
  parents.pop_back();
}

}  // namespace

void DescriptorTraits::close(Handle descriptor) noexcept {
  // Not retried on EINTR: Linux has released the descriptor by then. Lost writes are reported by
  // sync(), not here.
  ::close(descriptor);
}

File::File(std::filesystem::path path, int descriptor)
    : path_(std::move(path)), descriptor_(descriptor) {}

File File::open_to_read(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe must fail below instead of waiting for a writer.
  const int descriptor = open_descriptor(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) {
    throw_io("open", path);
  }
  File file(path, descriptor);

  struct stat status {};

  if (::fstat(descriptor, &status) != 0) {
    throw_io("look at", path);
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot read {}: {}, not a regular file",
                            path.string(),
                            S_ISDIR(status.st_mode) ? "it is a folder" : "it is a pipe or device"));
  }
  return file;
}

File File::open_to_write(const std::filesystem::path& path) {
  // Not to be read, too: for such a file an NFS client may read a page before it writes a part of
  // it, and then write back all of it, over what another node wrote there meanwhile.
  const int descriptor = open_descriptor(path, O_WRONLY | O_CREAT);
  if (descriptor < 0) {
    throw_io("create", path);
  }
  return File(path, descriptor);
}

std::uint64_t File::size_bytes() const {
  struct stat status {};

  if (::fstat(descriptor_.get(), &status) != 0) {
    throw_io("look at", path_);
  }
  return narrow<std::uint64_t>(status.st_size);
}

std::int64_t File::changed_ns() const {
  struct stat status {};

  if (::fstat(descriptor_.get(), &status) != 0) {
    throw_io("look at", path_);
  }
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

bool File::has_hole() const {
  const off_t hole = ::lseek(descriptor_.get(), 0, SEEK_HOLE);
  return hole >= 0 && static_cast<std::uint64_t>(hole) < size_bytes();
}

void File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  const WorkTimer timer(Work::kRead, out.size());
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = ::pread(
        descriptor_.get(), out.data() + done, out.size() - done, file_offset(offset + done));
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      const int error_number = errno;
      throw Error(ErrorCode::kIo,
                  fmt::format("cannot read {} bytes at offset {} of {}: {}",
                              out.size() - done,
                              offset + done,
                              path_.string(),
                              error_text(error_number)));
    }
    if (count == 0) {
      throw Error(ErrorCode::kIo,
                  fmt::format("{} ends at byte {}, but {} bytes at offset {} were to be read; "
                              "is it still being written or copied?",
                              path_.string(),
                              size_bytes(),
                              out.size(),
                              offset));
    }
    done += narrow<std::size_t>(count);
  }
}

void File::expect_read(std::uint64_t offset, std::uint64_t size_bytes) const noexcept {
  // Linux takes no more of one advice than what the device is read ahead by.
  constexpr std::uint64_t kPiece = std::uint64_t{128} << 10;
  for (std::uint64_t done = 0; done < size_bytes; done += kPiece) {
    (void)::posix_fadvise(descriptor_.get(),
                          static_cast<::off_t>(offset + done),
                          static_cast<::off_t>(std::min(kPiece, size_bytes - done)),
                          POSIX_FADV_WILLNEED);
  }
}

void File::drop_cached(std::uint64_t offset, std::uint64_t size_bytes) const noexcept {
  (void)::posix_fadvise(descriptor_.get(),
                        static_cast<::off_t>(offset),
                        static_cast<::off_t>(size_bytes),
                        POSIX_FADV_DONTNEED);
}

void File::write_at(std::uint64_t offset, std::span<const std::byte> data) const {
  const WorkTimer timer(Work::kWrite, data.size());
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t count = ::pwrite(
        descriptor_.get(), data.data() + done, data.size() - done, file_offset(offset + done));
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      const int error_number = errno;
      throw Error(ErrorCode::kIo,
                  fmt::format("cannot write {} bytes at offset {} of {}: {}",
                              data.size() - done,
                              offset + done,
                              path_.string(),
                              write_error_text(error_number, descriptor_.get())));
    }
    done += narrow<std::size_t>(count);
  }
}

void File::reserve(std::uint64_t size_bytes) const {
  const WorkTimer timer(Work::kWrite);
  int result = 0;
  do {
    result = ::ftruncate(descriptor_.get(), file_offset(size_bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0 && size_bytes > 0) {
    do {
      result = ::fallocate(descriptor_.get(), 0, 0, file_offset(size_bytes));
    } while (result != 0 && errno == EINTR);
    if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
      result = 0;  // network and overlay file systems without preallocation: the file stays sparse
    }
  }
  if (result != 0) {
    const int error_number = errno;
    throw Error(ErrorCode::kIo,
                fmt::format("cannot reserve {} bytes for {}: {}",
                            size_bytes,
                            path_.string(),
                            write_error_text(error_number, descriptor_.get())));
  }
}

void File::begin_sync(std::uint64_t offset, std::uint64_t size_bytes) const noexcept {
  (void)::sync_file_range(descriptor_.get(),
                          static_cast<::off_t>(offset),
                          static_cast<::off_t>(size_bytes),
                          SYNC_FILE_RANGE_WRITE);
}

void File::wait_for_sync(std::uint64_t offset, std::uint64_t size_bytes) const noexcept {
  (void)::sync_file_range(
      descriptor_.get(),
      static_cast<::off_t>(offset),
      static_cast<::off_t>(size_bytes),
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

void File::sync() const {
  const WorkTimer timer(Work::kWrite);
  sync_descriptor(descriptor_.get(), path_);
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const File file = File::open_to_read(path);
  const std::uint64_t size = file.size_bytes();
  if (size > max_bytes) {
    throw Error(ErrorCode::kInput,
                fmt::format("{} is {} bytes long; a file of this kind has at most {}",
                            path.string(),
                            size,
                            max_bytes));
  }
  std::string text(narrow<std::size_t>(size), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  std::random_device random;
  std::filesystem::path temporary = path;
  temporary.replace_filename(
      fmt::format(".{}.{:08x}{:08x}.tmp", path.filename().string(), random(), random()));
  try {
    const File file = File::open_to_write(temporary);
    file.write_at(0, std::as_bytes(std::span(text)));
    file.sync();
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      throw_io("rename", temporary);
    }
  } catch (const Error& error) {
    ::unlink(temporary.c_str());
    throw error.with_context(path.string());
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : ".");
}

void copy_file_synced(const std::filesystem::path& from, const std::filesystem::path& to) {
  const File source = File::open_to_read(from);
  const File target = File::open_to_write(to);
  const std::uint64_t size = source.size_bytes();
  target.reserve(size);
  std::vector<std::byte> buffer(
      narrow<std::size_t>(std::min<std::uint64_t>(size, kCopyChunkBytes)));
  for (std::uint64_t offset = 0; offset < size; offset += buffer.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(buffer.size(), size - offset);
    const std::span<std::byte> chunk(buffer.data(), narrow<std::size_t>(count));
    source.read_at(offset, chunk);
    target.write_at(offset, chunk);
  }
  target.sync();
}

void sync_folder(const std::filesystem::path& folder) {
  const UniqueHandle<DescriptorTraits> descriptor(open_descriptor(folder, O_RDONLY | O_DIRECTORY));
  if (!descriptor.has_value()) {
    throw_io("open", folder);
  }
  // Some network file systems have no fsync for folders; their names are durable when the server
  // answers.
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL && errno != EINTR) {
    throw_io("sync", folder);
  }
}

std::vector<std::filesystem::path> list_files(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    throw Error(ErrorCode::kInput,
                fmt::format("{} is not a folder{}",
                            folder.string(),
                            std::filesystem::exists(folder, error) ? "" : ": it does not exist"));
  }
  std::vector<std::filesystem::path> files;
  std::vector<FolderIdentity> parents;
  list_files_below(folder, {}, parents, files);
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace quantmill
