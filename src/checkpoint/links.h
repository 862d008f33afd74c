#pragma once

// Links of a checkpoint's files to places outside its folder. A job copies what they lead to, so a
// checkpoint from elsewhere could make it copy any file of this machine.

#include <filesystem>

#include "checkpoint/reader.h"

namespace quantmill {

// Checkpoint::open for a job. Unless links are followed, kInput for a file (shard, index or any
// that is copied) that lies outside the folder: names it, where it leads and what to do. In a
// Hugging Face cache ("…/snapshots/REVISION" with links to "…/blobs") the blobs count as inside.
Checkpoint open_source(const std::filesystem::path& folder, bool follow_links);

}  // namespace quantmill
