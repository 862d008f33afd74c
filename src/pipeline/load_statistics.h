#pragma once

// The statistics that --stats names, for every rank of a job.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "base/log.h"
#include "comm/exchange.h"
#include "comm/mpi.h"
#include "stats/merge.h"
#include "stats/statistics.h"

namespace quantmill {

// `where` is an HDF5 file of `quantmill stats`, or the PREFIX of PREFIX.tp0.pt, PREFIX.tp1.pt …,
// whose tensor-parallel parts are read by the ranks in turn, exchanged (`device`: PartExchange) and
// merged in part order. The log says how they are exchanged if there are several, on several ranks.
// Collective; every rank gets the same table. Errors: kInput: neither; and what the readers and
// merge_tensor_parallel refuse; PartExchange's.
Statistics load_statistics(const Communicator& world,
                           const std::optional<DeviceIdentity>& device,
                           const Log& log,
                           const std::filesystem::path& where,
                           const PartitionOf& partition);

// The same for a single process, without MPI.
Statistics load_statistics(const std::filesystem::path& where, const PartitionOf& partition);

// Parts 0 to num_parts - 1 in order, on every rank: each is read by one rank, which calls `read`
// with its number. Collective. Errors, on all ranks alike: what `read` throws; PartExchange's.
std::vector<Statistics> gather_parts(PartExchange& exchange,
                                     std::size_t num_parts,
                                     const std::function<Statistics(std::size_t part)>& read);

}  // namespace quantmill
