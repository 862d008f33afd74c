#pragma once

// The C library of HDF5 looks at a file in a process of its own, so that a file that it does not
// survive costs a message and not the job.

#include <filesystem>
#include <optional>
#include <span>

#include "stats/h5_tree.h"

namespace quantmill::h5 {

// Call first in a main, before there are threads. In a process that read_tree() began: answers it
// and gives the exit status. In any other it returns nothing, and read_tree() begins processes of
// this program from now on (where /proc is mounted).
std::optional<int> serve_read_tree(std::span<char* const> arguments);

// walk_file(), in a process of its own if serve_read_tree() was called; else in this one. Its
// errors, and kInput if the library crashed or never ended; kIo if there is no process to be had.
Object read_tree(const std::filesystem::path& file);

}  // namespace quantmill::h5
