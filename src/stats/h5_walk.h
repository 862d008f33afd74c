#pragma once

// An HDF5 file as the C library sees it. The library trusts what it reads (1.10 reads beyond
// damaged messages of object headers, and some files crash it), so programs that read files of
// others call this in another process: h5_process.h.

#include <filesystem>

#include "stats/h5_tree.h"

namespace quantmill::h5 {

// Opens the file without locks (network file systems may have none), reads everything that a Reader
// may want to know, and closes it. Links to other files or places are not followed. Damage of one
// object is that object's `problem`. Errors: kIo if it cannot be opened, kInput if it is not a
// whole HDF5 file or its objects claim more than it holds.
Object walk_file(const std::filesystem::path& file);

}  // namespace quantmill::h5
