#include "pipeline/work_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "pipeline/journal.h"
#include "pipeline/manifest.h"

namespace quantmill {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFingerprintName = "fingerprint.json";
constexpr const char* kReplacedName = "replaced";  // OUT as it was
constexpr std::uint64_t kMaxFingerprintBytes = std::uint64_t{1} << 28;

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

[[noreturn]] void throw_io(const char* what, const fs::path& path) {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(errno)));
}

}  // namespace

void check_output_place(const fs::path& out, const fs::path& source, bool may_exist) {
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
  if (!fs::is_directory(normalized(out).parent_path())) {
    throw Error(ErrorCode::kIo,
                fmt::format("the output's folder {} does not exist; make it first",
                            normalized(out).parent_path().string()));
  }
  if (!may_exist && fs::exists(fs::symlink_status(out))) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the output {} exists; give another name, or --overwrite to replace it "
                            "when the new one is "
                            "complete",
                            out.string()));
  }
}

WorkFolder::WorkFolder(const WorkRequest& request)
    : out_(normalized(request.out)),
      path_(journal_folder(request.out)),
      overwrite_(request.overwrite) {
  check_output_place(out_, request.source, true);
  lock_.emplace(out_);
  restore_replaced();
  if (is_finished(request)) {
    state_ = WorkState::kFinished;
    std::error_code ignored;
    fs::remove_all(path_, ignored);  // a job that was killed after its last step
    return;
  }
  if (can_resume(request)) {
    state_ = WorkState::kResumed;
    kept_ = true;
    return;
  }
  try {
    make_folder(request.timed_inputs);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    throw;
  }
}

void WorkFolder::make_folder(const Fingerprint& timed_inputs) const {
  std::error_code failure;
  fs::remove_all(path_, failure);
  fs::create_directories(output_folder(out_), failure);
  if (failure) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot make {}: {}", path_.string(), failure.message()));
  }
  write_text_file(path_ / kFingerprintName, print_fingerprint(timed_inputs));
  sync_folder(out_.parent_path());
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  if (!kept_) {
    fs::remove_all(path_, ignored);
  }
}

bool WorkFolder::is_finished(const WorkRequest& request) const {
  if (!fs::exists(fs::symlink_status(out_))) {
    return false;
  }
  std::string difference = "it was not asked to be resumed";
  if (request.mode == StartMode::kResume && fs::is_regular_file(out_ / kManifestName)) {
    difference = describe_difference(read_manifest(out_).inputs, request.inputs);
    if (difference.empty()) {
      return true;
    }
  }
  if (!request.overwrite) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the output {} exists{}; give another name, or --overwrite to replace "
                            "it when the new one is "
                            "complete",
                            out_.string(),
                            request.mode == StartMode::kResume
                                ? " and is of another job (" + difference + ")"
                                : ""));
  }
  return false;
}

bool WorkFolder::can_resume(const WorkRequest& request) const {
  if (request.mode == StartMode::kRestart || !fs::is_regular_file(path_ / kFingerprintName) ||
      !fs::is_directory(output_folder(out_)) || read_journals(path_).empty()) {
    return false;  // there is nothing that would be lost
  }
  if (request.mode == StartMode::kStart) {
    throw Error(ErrorCode::kUsage,
                fmt::format("an unfinished job for {} is in {}; go on with it by --resume, or "
                            "throw it away by --restart",
                            out_.string(),
                            path_.string()));
  }
  const Fingerprint was =
      parse_fingerprint(read_text_file(path_ / kFingerprintName, kMaxFingerprintBytes));
  const std::string difference = describe_difference(was, request.timed_inputs);
  if (!difference.empty()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the unfinished job in {} can't be resumed by this one: {}; make that "
                            "as it was, or throw "
                            "the unfinished job away by --restart",
                            path_.string(),
                            difference));
  }
  return true;
}

fs::path WorkFolder::journal_folder(const fs::path& out) {
  const fs::path whole = normalized(out);
  return whole.parent_path() / fmt::format(".{}.quantmill-work", whole.filename().string());
}

fs::path WorkFolder::output_folder(const fs::path& out) {
  return journal_folder(out) / "output";
}

void WorkFolder::commit() {
  const fs::path output = output_folder(out_);
  for (const auto& entry : fs::recursive_directory_iterator(output)) {
    if (entry.is_directory()) {
      sync_folder(entry.path());
    }
  }
  sync_folder(output);
  rename_to_out();
  sync_folder(out_.parent_path());
  kept_ = false;
}

void WorkFolder::rename_to_out() const {
  const fs::path output = output_folder(out_);
  if (::renameat2(AT_FDCWD, output.c_str(), AT_FDCWD, out_.c_str(), RENAME_NOREPLACE) == 0) {
    return;
  }
  if (errno == EINVAL || errno == ENOSYS) {
    rename_by_steps();
    return;
  }
  if (errno != EEXIST) {
    throw_io("rename the finished checkpoint to", out_);
  }
  check_replaceable();
  // Change places with OUT, so that a complete checkpoint is there at every moment.
  if (::renameat2(AT_FDCWD, output.c_str(), AT_FDCWD, out_.c_str(), RENAME_EXCHANGE) == 0) {
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) {
    throw_io("rename the finished checkpoint to", out_);
  }
  rename_by_steps();
}

void WorkFolder::rename_by_steps() const {
  const fs::path replaced = path_ / kReplacedName;
  const bool replaces = fs::exists(fs::symlink_status(out_));
  if (replaces) {
    check_replaceable();
    if (::rename(out_.c_str(), replaced.c_str()) != 0) {
      throw_io("set aside", out_);
    }
  }
  if (::rename(output_folder(out_).c_str(), out_.c_str()) != 0) {
    const int error_number = errno;
    restore_replaced();
    errno = error_number;
    throw_io("rename the finished checkpoint to", out_);
  }
}

void WorkFolder::check_replaceable() const {
  if (!overwrite_) {
    throw Error(ErrorCode::kIo,
                fmt::format("{} was made by others while the job ran; move it away, or add "
                            "--overwrite",
                            out_.string()));
  }
}

void WorkFolder::restore_replaced() const {
  const fs::path replaced = path_ / kReplacedName;
  if (fs::exists(fs::symlink_status(replaced)) && !fs::exists(fs::symlink_status(out_)) &&
      ::rename(replaced.c_str(), out_.c_str()) != 0) {
    throw_io("put back", out_);
  }
}

}  // namespace quantmill
