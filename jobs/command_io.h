#pragma once

// What commands that read a checkpoint and print share.

#include <filesystem>

#include "checkpoint/reader.h"

namespace quantmill {

// A folder, or one .safetensors file. kInput if there is neither, and what Checkpoint refuses.
Checkpoint open_checkpoint(const std::filesystem::path& path);

// Flushes the standard output. kIo if not all of it could be written.
void finish_output();

}  // namespace quantmill
