#pragma once

// How long the tasks of a job take on this machine: a few of each kind are really done, by the code
// that the job runs, and what they write is thrown away.

#include <cstdint>
#include <filesystem>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/feedback_factors.h"
#include "pipeline/pilot_samples.h"
#include "pipeline/team.h"
#include "plan/plan.h"
#include "stats/statistics.h"

namespace quantmill {

struct Pilot {
  int workers = 1;  // that worked at a time
  // What a worker takes at a time: with Scaling::kBlockGrid a chunk of a fold group, else a search
  // task.
  TaskTimes search;
  double search_shared_seconds = 0;  // of a worker: what each group takes beside its tasks
  TaskTimes measure;                 // of the write tasks that are measured
  TaskTimes write;
  double factor_seconds = 0;  // Rounding::kGptq: of all factors, which are made one after the other
  // Bytes a second of one file: hashed, and made durable after they were written.
  double hash_rate = 0;
  double sync_rate = 0;
  double read_rate = 0;                 // bytes a second that a worker got while it read
  double seconds = 0;                   // that all this took
  std::uint64_t peak_memory_bytes = 0;  // of this process, the pilot included
};

struct PilotRequest {
  int workers = 1;
  std::uint64_t buffer_bytes = 0;  // of each
  double seconds = 5;              // about; a task of each kind is done in any case
  std::filesystem::path folder;    // gets a file for a while
};

// `plan` is as it was afterwards; meanwhile it has a few of its search tasks. `statistics` and
// `feedback`: as the job has them. Collective over MPI_COMM_WORLD, which is this process alone.
// Errors: kInterrupted for a signal; what the job's tasks refuse.
Pilot run_pilot(const Context& context,
                const Checkpoint& checkpoint,
                Plan& plan,
                const Statistics& statistics,
                FeedbackFactors* feedback,
                const PilotRequest& request);

}  // namespace quantmill
