#pragma once

// How the writing is shared among nodes: each gets one run of the output, so that it writes few
// files and few nodes write to one file.

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace quantmill {

// Cuts items into one run for each node, in their order: costs per rank differ by two items at
// most, however few the items that stay together. Returns the node of each item. Pure.
std::vector<std::size_t> cut_into_spans(std::span<const std::uint64_t> costs,
                                        std::span<const int> node_ranks);

// The node of each of the plan's write tasks: runs of the output's shards, one shard after the
// other. A task counts for the shard that its codes go to; its node writes its scales too. Pure.
std::vector<std::size_t> nodes_of_write_tasks(const Plan& plan, std::span<const int> node_ranks);

// The node that finishes each shard: one that wrote to it. Pure.
std::vector<std::size_t> nodes_of_shards(const Plan& plan,
                                         std::span<const std::size_t> node_of_task);

}  // namespace quantmill
