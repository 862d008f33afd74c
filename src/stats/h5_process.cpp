#include "stats/h5_process.h"

#include <fcntl.h>
#include <malloc.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/packing.h"
#include "stats/h5_library.h"
#include "stats/h5_walk.h"

namespace quantmill::h5 {
namespace {

// The first argument of a process that is to answer; no command has such a name.
constexpr const char* kArgument = "--hdf5-tree";
// Of a file whose groups lead the library in circles. One of a million objects takes some ten.
constexpr rlim_t kMaxCpuSeconds = 600;
// What the library may take of memory, and as much again as the file has, up to kMaxFileBytes.
constexpr std::uint64_t kLibraryBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{3} << 30;

using Descriptor = UniqueHandle<DescriptorTraits>;

// The file of this program, by whatever name it goes by now. Set before there are threads.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
Descriptor program;

// How an answer begins.
constexpr std::byte kIsTree{0};
constexpr std::byte kIsError{1};

// Address space that this process has, in bytes.
std::uint64_t address_space() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Of this process, which ends with its answer.
void limit_library(const std::filesystem::path& file) {
  const rlimit cpu{kMaxCpuSeconds, kMaxCpuSeconds + 1};
  ::setrlimit(RLIMIT_CPU, &cpu);
  std::error_code ignored;  // the walk tells why there is no file
  const std::uintmax_t file_bytes = std::filesystem::file_size(file, ignored);
  const rlim_t bytes =
      address_space() + kLibraryBytes + std::min<std::uint64_t>(file_bytes, kMaxFileBytes);
  const rlimit memory{bytes, bytes};
  ::setrlimit(RLIMIT_AS, &memory);
  // Memory is zero wherever the library forgets to set it: some damaged files have it free what it
  // never allocated.
  ::mallopt(M_PERTURB, 0xff);
}

bool write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return false;
    }
    bytes = bytes.subspan(static_cast<std::size_t>(std::max<ssize_t>(0, written)));
  }
  return true;
}

bool send(int descriptor, std::byte kind, std::span<const std::byte> bytes) {
  return write_all(descriptor, std::span(&kind, 1)) && write_all(descriptor, bytes);
}

// Sends the file's tree, or what went wrong.
bool answer(const std::filesystem::path& file, int output) {
  try {
    ask_for_memory();
    return send(output, kIsTree, serialize(walk_file(file)));
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    Packer packer;
    packer.value(error.code());
    packer.sequence(error.message());
    return send(output, kIsError, packer.take());
  }
}

[[noreturn]] void fail_to_begin(const std::filesystem::path& file, int error) {
  throw Error(ErrorCode::kIo,
              fmt::format("\"{}\": cannot begin a process that reads it: {}",
                          file.string(),
                          std::generic_category().message(error)));
}

struct Pipe {
  Descriptor read;
  Descriptor write;
};

Pipe make_pipe(const std::filesystem::path& file) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    fail_to_begin(file, errno);
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// A process of this program that writes its answer to `output`. exec, not only fork: memory that
// MPI or an accelerator has pinned must not become another process's too. Signals that ask the job
// to stop are for this process, which waits for the other.
pid_t begin(const std::filesystem::path& file, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t stops;
  sigemptyset(&stops);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    sigaddset(&stops, signal);
  }
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  // What the C library says of broken memory is not for people.
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_setsigmask(&attributes, &stops);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const std::string program_path = fmt::format("/proc/self/fd/{}", program.get());
  std::string name = "quantmill";
  std::string argument = kArgument;
  std::string path = file.string();
  std::array<char*, 4> arguments = {name.data(), argument.data(), path.data(), nullptr};
  pid_t process = 0;
  const int error = ::posix_spawn(
      &process, program_path.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    fail_to_begin(file, error);
  }
  return process;
}

std::vector<std::byte> read_all(int descriptor) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  std::vector<std::byte> bytes;
  while (true) {
    const std::size_t old = bytes.size();
    bytes.resize(old + kPiece);
    const ssize_t count = ::read(descriptor, bytes.data() + old, kPiece);
    bytes.resize(old + static_cast<std::size_t>(std::max<ssize_t>(0, count)));
    if (count == 0 || (count < 0 && errno != EINTR)) {
      return bytes;
    }
  }
}

// How it ended; a signal's number, or 0.
int wait_for(pid_t process) {
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

[[noreturn]] void refuse(const std::filesystem::path& file, int signal) {
  const std::string how = signal == SIGXCPU ? "did not come to an end with it"
                          : signal == 0     ? "broke down over it"
                                        : fmt::format("crashed on it ({})", ::strsignal(signal));
  throw Error(
      ErrorCode::kInput,
      fmt::format(
          "\"{}\": is damaged: the HDF5 library {}; make the file anew", file.string(), how));
}

using Answer = std::variant<Object, Error>;

// Nothing if these are not the bytes of answer(): the library had broken the process that gave it.
std::optional<Answer> take_answer(std::span<const std::byte> bytes) {
  if (bytes.empty() || (bytes.front() != kIsTree && bytes.front() != kIsError)) {
    return std::nullopt;
  }
  try {
    if (bytes.front() == kIsTree) {
      return deserialize_object(bytes.subspan(1));
    }
    Unpacker unpacker(bytes.subspan(1));
    ErrorCode code{};
    std::string message;
    unpacker.value(code);
    unpacker.sequence(message);
    return Error(code, message);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<int> serve_read_tree(std::span<char* const> arguments) {
  if (arguments.size() != 3 || std::string_view(arguments[1]) != kArgument) {
    // Not that link itself: under valgrind it would be valgrind.
    std::error_code no_proc;
    const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", no_proc);
    program.reset(no_proc ? DescriptorTraits::null() : ::open(path.c_str(), O_PATH | O_CLOEXEC));
    return std::nullopt;
  }
  ::prctl(PR_SET_NAME, "quantmill-hdf5");
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  limit_library(arguments[2]);
  // Whatever the library left behind is not tidied up.
  ::_exit(answer(arguments[2], STDOUT_FILENO) ? 0 : 1);
}

Object read_tree(const std::filesystem::path& file) {
  if (!program.has_value()) {
    return walk_file(file);
  }
  Pipe pipe = make_pipe(file);
  const pid_t process = begin(file, pipe.write.get());
  pipe.write.reset();
  const std::vector<std::byte> bytes = read_all(pipe.read.get());
  const int signal = wait_for(process);
  std::optional<Answer> answer = take_answer(bytes);
  if (!answer) {
    refuse(file, signal);
  }
  if (const Error* const error = std::get_if<Error>(&*answer)) {
    throw Error(*error);
  }
  return std::get<Object>(std::move(*answer));
}

}  // namespace quantmill::h5
