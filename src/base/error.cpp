#include "base/error.h"

#include <filesystem>
#include <new>
#include <system_error>

#include <fmt/format.h>

namespace quantmill {

Error::Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

Error Error::with_context(std::string_view context) const {
  return Error(code_, fmt::format("{}: {}", context, message_));
}

Error Error::agreed() const {
  Error copy = *this;
  copy.agreed_ = true;
  return copy;
}

void fail_invariant(const char* what, const char* file, int line) {
  throw Error(ErrorCode::kInternal,
              fmt::format("internal fault at {}:{}: {}; please report it", file, line, what));
}

Error as_error(const std::exception& exception) {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) {
    return *error;
  }
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) {
    return Error(ErrorCode::kIo,
                 "out of memory; give the job more memory, fewer threads, or fewer ranks per node");
  }
  if (const auto* refused = dynamic_cast<const std::filesystem::filesystem_error*>(&exception)) {
    return Error(
        ErrorCode::kIo,
        fmt::format("cannot use {}: {}", refused->path1().string(), refused->code().message()));
  }
  if (dynamic_cast<const std::system_error*>(&exception) !=
      nullptr) {  // such as one thread too many
    return Error(ErrorCode::kIo,
                 fmt::format("the operating system refused what the job needs: {}; give it more "
                             "memory, fewer threads, or fewer ranks per node",
                             exception.what()));
  }
  return Error(ErrorCode::kInternal,
               fmt::format("internal fault: {}; please report it", exception.what()));
}

}  // namespace quantmill
