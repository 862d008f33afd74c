#pragma once

// The one exception type of the project, and the exit status that each kind of failure gives.
// Not for expected alternatives (enums) nor for absence (std::optional).

#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace quantmill {

// The value is the exit status of the program.
enum class ErrorCode : int {
  kUsage = 2,         // the command line or the recipe asks for something that does not exist
  kInput = 3,         // a checkpoint, statistics or configuration file is wrong
  kIo = 4,            // the operating system refused to read, write, sync or rename
  kDevice = 5,        // an accelerator failed
  kComm = 6,          // MPI or NCCL failed
  kInternal = 70,     // our own fault
  kInterrupted = 75,  // a signal stopped the job; it can be resumed
};

// A failure with a message that says what failed, on what, what was found, what was wanted and what
// to do.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

  [[nodiscard]] const std::string& message() const noexcept { return message_; }

  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

  // The same failure, told with where it happened: "context: message".
  [[nodiscard]] Error with_context(std::string_view context) const;

  // Whether every rank of the job throws this same Error, so that all can end in good order (see
  // Communicator::collectively). Otherwise the job must be aborted.
  [[nodiscard]] bool is_agreed() const noexcept { return agreed_; }

  [[nodiscard]] Error agreed() const;

 private:
  ErrorCode code_;
  std::string message_;
  bool agreed_ = false;
};

// Throws kInternal.
[[noreturn]] void fail_invariant(const char* what, const char* file, int line);

// Throws kInternal unless `holds`: a broken precondition of our own making, never of the data's.
inline void check_invariant(bool holds,
                            const char* what,
                            const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  if (!holds) {
    fail_invariant(what, file, line);
  }
}

// Runs `body`; an Error that leaves it gets `context` put before its message.
template <typename Body>
decltype(auto) with_context(std::string_view context, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    throw error.with_context(context);
  }
}

// What an arbitrary exception means for the job: an Error stays itself; no memory, and what the
// operating system refused (std::system_error), is kIo; anything else kInternal.
Error as_error(const std::exception& exception);

}  // namespace quantmill
