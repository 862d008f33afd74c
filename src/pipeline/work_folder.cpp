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

void check_places(const fs::path& out, const fs::path& source) {
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
}

[[noreturn]] void throw_io(const char* what, const fs::path& path) {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(errno)));
}

}  // namespace

WorkFolder::WorkFolder(const WorkRequest& request)
    : out_(normalized(request.out)), path_(journal_folder(request.out)) {
  check_places(out_, request.source);
  lock_.emplace(out_);
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
  std::error_code failure;
  fs::remove_all(path_, failure);
  fs::create_directories(output_folder(out_), failure);
  if (failure) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot make {}: {}", path_.string(), failure.message()));
  }
  write_text_file(path_ / kFingerprintName, print_fingerprint(request.timed_inputs));
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
  sync_folder(output);
  if (::renameat2(AT_FDCWD, output.c_str(), AT_FDCWD, out_.c_str(), RENAME_NOREPLACE) != 0) {
    // OUT exists: change places with it, so that a complete checkpoint is there at every moment.
    if (errno != EEXIST ||
        ::renameat2(AT_FDCWD, output.c_str(), AT_FDCWD, out_.c_str(), RENAME_EXCHANGE) != 0) {
      throw_io("rename the finished checkpoint to", out_);
    }
  }
  sync_folder(out_.parent_path());
  kept_ = false;
}

}  // namespace quantmill
