#pragma once

// What every fuzz target is made of: the entry point, and what a parser may throw.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/handle.h"

// libFuzzer's entry point; each *_fuzz.cpp defines it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace quantmill::fuzz {

inline void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "violated: %s\n", what);
    std::abort();
  }
}

// Runs `body`, which may refuse its input with kInput and nothing else; any other exception ends
// the process.
template <typename Body>
void only_input_errors(Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInput) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    require(error.code() == ErrorCode::kInput, "a parser refuses bad input with kInput");
    require(!error.message().empty(), "an error has a message");
  }
}

// A file in memory, for parsers that open files by name. A name of its own: HDF5 follows links, and
// finds nothing at the end of that of a memfd below /proc, so that it would refuse every input.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : descriptor_(mkstemp(path_.data())) {
    require(descriptor_.has_value(), "/dev/shm takes files");
    File::open_to_write(path_).write_at(0, std::as_bytes(std::span(data, size)));
  }

  ~MemoryFile() { ::unlink(path_.c_str()); }

  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = "/dev/shm/quantmill-fuzz-XXXXXX";
  UniqueHandle<DescriptorTraits> descriptor_;
};

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace quantmill::fuzz
