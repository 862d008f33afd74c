#pragma once

// Which files of a model's folder are shards, told by their names.

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/index.h"

namespace quantmill {

// "'a', 'b', 'c', 'd', 'e' and 7 more", for messages.
std::string list_names(const std::vector<std::string>& names);

// Whether it may hold weights, in any format, or is an index of such files.
bool is_weight_file(const std::filesystem::path& path);

// Whether a part of the path begins with a dot.
bool is_hidden(const std::filesystem::path& path);

// The shards of a folder without an index, sorted: *.safetensors, less what other programs read
// (consolidated*, adapter*). kInput: there are none, or some that the others are numbered for are
// missing. kIo: the folder cannot be listed.
std::vector<std::string> find_shards_without_index(const std::filesystem::path& folder);

// kInput if files that the index names are missing.
void check_shards_exist(const std::filesystem::path& folder, const CheckpointIndex& index);

}  // namespace quantmill
