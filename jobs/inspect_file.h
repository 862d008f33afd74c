#pragma once

// What `quantmill inspect` shows of files that are no checkpoints: manifests, HDF5 of statistics
// and of scales.

#include <filesystem>
#include <optional>
#include <string>

namespace quantmill {

// Text for people, or JSON; nothing if the name says that it is a checkpoint. kInput for a file
// that is not what its name says.
std::optional<std::string> inspect_file(const std::filesystem::path& path, bool as_json);

}  // namespace quantmill
