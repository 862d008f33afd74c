#pragma once

// What a job asks of a Slurm cluster, estimated from the plan and an assumed speed, for people to
// paste into a batch script.

#include <cstdint>
#include <string>

#include "plan/plan.h"

namespace quantmill {

// Bytes of source a second on one core that are assumed if nothing else is known: slow cores and a
// busy file system. The search costs most of the time.
inline constexpr std::uint64_t kAssumedRateWithSearch = std::uint64_t{50} << 20;
inline constexpr std::uint64_t kAssumedRateWithoutSearch = std::uint64_t{200} << 20;

struct SlurmBlock {
  std::uint64_t source_bytes = 0;
  std::uint64_t assumed_rate = 0;  // bytes a second and core
  bool is_measured = false;        // that rate, and so not assumed
  std::uint64_t nodes = 1;
  std::uint64_t tasks_per_node = 1;
  std::uint64_t cpus_per_task = 1;
  std::uint64_t memory_mib = 0;         // of a node
  std::uint64_t estimated_seconds = 0;  // at the assumed rate
  std::uint64_t limit_minutes = 0;      // twice that and some, to be sure
};

// Enough cores to be done in half an hour, 16 to a node, on no more nodes than there are output
// files to share out. memory_bytes: of each rank (--memory); num_threads: of each rank, 0 is 1;
// assumed_rate: 0 takes one of the constants above; is_measured: where it is
// from, for describe_slurm_block. Pure.
SlurmBlock suggest_slurm_block(const Plan& plan,
                               std::uint64_t memory_bytes,
                               int num_threads,
                               std::uint64_t assumed_rate,
                               bool is_measured = false);

// The lines "#SBATCH …" alone.
std::string print_slurm_block(const SlurmBlock& block);

// The same with what it rests on, for people.
std::string describe_slurm_block(const SlurmBlock& block);

}  // namespace quantmill
