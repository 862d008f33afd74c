#include "pipeline/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr std::chrono::milliseconds kPause{100};

[[noreturn]] void throw_io(const char* what, const std::filesystem::path& path) {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(errno)));
}

// Whether the path still names the open file: its last owner may have removed it meanwhile.
bool is_named(const std::filesystem::path& path, int descriptor) {
  struct stat by_path {};

  struct stat by_descriptor {};

  return ::stat(path.c_str(), &by_path) == 0 && ::fstat(descriptor, &by_descriptor) == 0 &&
         by_path.st_ino == by_descriptor.st_ino && by_path.st_dev == by_descriptor.st_dev;
}

}  // namespace

OutputLock::OutputLock(const std::filesystem::path& out)
    : path_(out.parent_path() / fmt::format(".{}.quantmill-lock", out.filename().string())) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (;; std::this_thread::sleep_for(kPause)) {
    UniqueHandle<DescriptorTraits> descriptor(
        ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!descriptor.has_value()) {
      throw_io("create", path_);
    }
    if (::flock(descriptor.get(), LOCK_EX | LOCK_NB) == 0) {
      if (is_named(path_, descriptor.get())) {
        descriptor_ = std::move(descriptor);
        return;
      }
      continue;
    }
    if (errno != EWOULDBLOCK) {
      throw_io("lock", path_);
    }
    if (std::chrono::steady_clock::now() > end) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("another job is writing {} (it holds {}); wait for it or stop it",
                              out.string(),
                              path_.string()));
    }
  }
}

OutputLock::~OutputLock() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace quantmill
