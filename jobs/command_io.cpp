#include "jobs/command_io.h"

#include <iostream>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

Checkpoint open_checkpoint(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw Error(ErrorCode::kInput,
                fmt::format("{} does not exist; give a checkpoint's folder or a .safetensors file",
                            path.string()));
  }
  return std::filesystem::is_directory(path, error) ? Checkpoint::open(path)
                                                    : Checkpoint::open_file(path);
}

void finish_output() {
  std::cout << std::flush;
  if (!std::cout) {
    throw Error(ErrorCode::kIo, "cannot write to the standard output; is the disk full?");
  }
}

}  // namespace quantmill
