#pragma once

// The statistics that --stats names, for every rank of a job.

#include <filesystem>

#include "comm/mpi.h"
#include "stats/merge.h"
#include "stats/statistics.h"

namespace quantmill {

// `where` is an HDF5 file of `quantmill stats`, or the PREFIX of PREFIX.tp0.pt, PREFIX.tp1.pt …,
// whose tensor-parallel parts are read by the ranks in turn and merged in part order. Collective;
// every rank gets the same table. Errors: kInput: neither; and what the readers and
// merge_tensor_parallel refuse.
Statistics load_statistics(const Communicator& world,
                           const std::filesystem::path& where,
                           const PartitionOf& partition);

// The same for a single process, without MPI.
Statistics load_statistics(const std::filesystem::path& where, const PartitionOf& partition);

}  // namespace quantmill
