#pragma once

// The job: plan, statistics, search, write, assemble, commit.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "device/context.h"
#include "pipeline/team.h"
#include "plan/recipe.h"

namespace quantmill {

struct JobOptions {
  std::filesystem::path source;
  std::filesystem::path out;
  std::optional<std::filesystem::path> statistics;  // HDF5 file or PREFIX of PREFIX.tp0.pt …
  std::optional<std::filesystem::path>
      compat_scales;  // see read_compat_scales; instead of statistics
  Recipe recipe;
  std::uint64_t memory_bytes = std::uint64_t{2} << 30;  // per rank
  bool overwrite = false;
};

// Runs the whole job and returns lines for people: what came out. Collective over team.world. An
// Error that is_agreed() is thrown on all ranks alike: nothing is left behind and OUT is as it was.
// Any other Error means that ranks are out of step: the caller must abort the job.
std::string run_job(const Team& team,
                    const Context& context,
                    const Log& log,
                    const JobOptions& options);

// The buffers of each worker that --memory allows. kUsage, with what is needed, if it is too
// little.
std::uint64_t worker_buffer_bytes(std::uint64_t memory_bytes,
                                  int num_threads,
                                  std::uint64_t smallest_bytes);

}  // namespace quantmill
