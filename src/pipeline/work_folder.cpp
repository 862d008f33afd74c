#include "pipeline/work_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {
namespace {

namespace fs = std::filesystem;

// OUT as an absolute path without a trailing slash.
fs::path normalized(const fs::path& path) {
  fs::path absolute = fs::absolute(path).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

// Whether `inner` is `outer` or lies below it.
bool is_within(const fs::path& inner, const fs::path& outer) {
  const auto [end, ignored] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end();
}

fs::path lock_path(const fs::path& out) {
  return normalized(out).parent_path() /
         fmt::format(".{}.quantmill-lock", normalized(out).filename().string());
}

void check_out(const fs::path& out, bool overwrite, const fs::path& source) {
  std::error_code ignored;
  const fs::path real_source = fs::weakly_canonical(source, ignored);
  const fs::path real_out = fs::weakly_canonical(out, ignored);
  if (is_within(real_out, real_source) || is_within(real_source, real_out)) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format(
            "the output {} and the source {} lie inside each other; choose an output elsewhere",
            out.string(),
            source.string()));
  }
  if (!fs::is_directory(out.parent_path())) {
    throw Error(ErrorCode::kIo,
                fmt::format("the output's folder {} does not exist; make it first",
                            out.parent_path().string()));
  }
  if (fs::exists(fs::symlink_status(out)) && !overwrite) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the output {} exists; give another name, or --overwrite to replace it "
                            "when the new one is "
                            "complete",
                            out.string()));
  }
}

[[noreturn]] void throw_io(const char* what, const fs::path& path) {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(errno)));
}

}  // namespace

WorkFolder::WorkFolder(const fs::path& out, bool overwrite, const fs::path& source)
    : out_(normalized(out)), path_(path_for(out)) {
  check_out(out_, overwrite, source);
  const fs::path lock = lock_path(out_);
  lock_.reset(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock_.has_value()) {
    throw_io("create", lock);
  }
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("another job is writing {} (it holds {}); wait for it or stop it",
                              out_.string(),
                              lock.string()));
    }
    throw_io("lock", lock);
  }
  std::error_code failure;
  fs::remove_all(path_, failure);
  fs::create_directory(path_, failure);
  if (failure) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot make {}: {}", path_.string(), failure.message()));
  }
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  if (!committed_) {
    fs::remove_all(path_, ignored);
  }
  fs::remove(lock_path(out_), ignored);
}

fs::path WorkFolder::path_for(const fs::path& out) {
  const fs::path whole = normalized(out);
  return whole.parent_path() / fmt::format(".{}.quantmill-work", whole.filename().string());
}

void WorkFolder::commit() {
  sync_folder(path_);
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, out_.c_str(), RENAME_NOREPLACE) != 0) {
    // OUT exists: change places with it, so that a complete checkpoint is there at every moment.
    if (errno != EEXIST ||
        ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, out_.c_str(), RENAME_EXCHANGE) != 0) {
      throw_io("rename the finished checkpoint to", out_);
    }
  }
  committed_ = true;
  sync_folder(out_.parent_path());
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace quantmill
