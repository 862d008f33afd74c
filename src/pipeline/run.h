#pragma once

// The job: plan, statistics, schemes for a target, search, write, assemble, commit.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/feedback_factors.h"
#include "pipeline/page_cache.h"
#include "pipeline/team.h"
#include "pipeline/work_folder.h"
#include "plan/plan.h"
#include "plan/recipe.h"

namespace quantmill {

struct JobOptions {
  std::filesystem::path source;
  std::filesystem::path out;
  std::optional<std::filesystem::path> statistics;  // HDF5 file or PREFIX of PREFIX.tp0.pt …
  std::optional<std::filesystem::path>
      compat_scales;                            // see read_compat_scales; instead of statistics
  std::optional<std::filesystem::path> scales;  // see read_given_scales; instead of statistics
  std::optional<std::filesystem::path> error_table;  // ErrorTable: read if it is there, else made
  Recipe recipe;
  std::uint64_t check_tensor_parallel = 0;              // ranks that are to serve it; 0: any
  std::uint64_t memory_bytes = std::uint64_t{2} << 30;  // per rank
  bool overwrite = false;
  bool follow_links = false;  // of the source to places outside it
  PageCache page_cache = PageCache::kAuto;
  StartMode start = StartMode::kStart;
  bool journal = true;  // note finished work, so that the job can be resumed
  std::chrono::milliseconds checkpoint_interval{30'000};  // how much work a crash may cost
  std::chrono::milliseconds heartbeat{60'000};            // between lines of progress; 0: none
  std::vector<std::string> command;                       // that asked for the job, for its record
};

// Runs the whole job and returns lines for people: what came out. Collective over team.world. An
// Error that is_agreed() is thrown on all ranks alike, and OUT is as it was. After kIo,
// kInterrupted and whatever else is not the fault of the input, finished work is kept beside OUT
// and StartMode::kResume goes on with it, on any number of ranks, to the same bytes; otherwise
// nothing is left behind. Any other Error means that ranks are out of step: the caller must abort
// the job.
std::string run_job(const Team& team,
                    const Context& context,
                    const Log& log,
                    const JobOptions& options);

// Whether scales are searched, and so statistics needed.
bool searches_scales(const JobOptions& options);

// Whether the job reads the statistics that its options name: to choose schemes, to search scales,
// to weigh errors, or for maxima.
bool uses_statistics(const JobOptions& options);

// What the job will do. `statistics`: empty unless uses_statistics. Errors: what make_plan refuses;
// kUsage: scales of activations or of the key-value cache are asked for, and there are none.
Plan make_job_plan(const Checkpoint& checkpoint,
                   const Statistics& statistics,
                   const JobOptions& options);
// The same with model_architecture of the recipe, for callers that make several plans.
Plan make_job_plan(const Checkpoint& checkpoint,
                   const Statistics& statistics,
                   const JobOptions& options,
                   ResolvedArchitecture architecture);

// Of a recipe that rounds by gptq; null otherwise. `plan` and `statistics` must outlive it. Errors:
// kUsage: no statistics; what FeedbackFactors refuses.
std::unique_ptr<FeedbackFactors> make_feedback(const JobOptions& options,
                                               const Plan& plan,
                                               const Statistics& statistics);

// What can be refused before any work: memory (kUsage, with what is needed), the output's place
// (kUsage, kIo) and the disk space there (kIo). `feedback`: make_feedback. Returns the buffers of
// each worker.
std::uint64_t check_resources(const JobOptions& options,
                              const Checkpoint& checkpoint,
                              const Plan& plan,
                              const Statistics& statistics,
                              const FeedbackFactors* feedback,
                              int num_threads);

// What a rank holds of a model whatever its threads: headers, plan, scales, sums of the search, and
// what is made of them for the files beside the weights.
std::uint64_t model_bytes(const Checkpoint& checkpoint, const Plan& plan);
std::uint64_t statistics_bytes(const Statistics& statistics);

// The buffers of each worker that --memory allows beside `held_bytes`, at most `largest_bytes`
// unless a row needs more. kUsage, with what is needed, if it is too little.
std::uint64_t worker_buffer_bytes(std::uint64_t memory_bytes,
                                  std::uint64_t held_bytes,
                                  int num_threads,
                                  std::uint64_t smallest_bytes,
                                  std::uint64_t largest_bytes);

}  // namespace quantmill
