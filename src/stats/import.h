#pragma once

// The files that tensor-parallel ranks wrote with torch.save -> whole statistics. Not for HDF5
// files (store.h).

#include <filesystem>

#include "stats/merge.h"
#include "stats/statistics.h"

namespace quantmill {

// Reads PREFIX.tp0.pt, PREFIX.tp1.pt … and merges them in rank order.
// Errors, kInput: no such files, and what torch_archive.h and merge.h refuse.
Statistics import_tensor_parallel(const std::filesystem::path& prefix,
                                  const PartitionOf& partition_of);

}  // namespace quantmill
