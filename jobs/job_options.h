#pragma once

// The options of a job: `quantize` runs it, `plan` tells what it would do; both take the same.

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "base/log.h"
#include "jobs/recipe_options.h"
#include "pipeline/run.h"

namespace quantmill {

// Values as given on the command line.
struct JobCommandOptions {
  std::string source;
  std::string out;
  std::optional<std::string> statistics;
  std::optional<std::string> compat_scales;
  std::optional<std::string> scales;
  std::optional<std::string> error_table;
  std::shared_ptr<RecipeOptions> recipe;
  std::uint64_t check_tensor_parallel = 0;
  std::string memory = "2G";
  std::string backend = "auto";
  std::optional<std::string> gpu_memory;
  std::optional<std::string> log_json;
  int num_threads = 0;
  int ranks_per_node = 0;
  bool overwrite = false;
  bool follow_links = false;
  bool resume = false;
  bool restart = false;
  bool no_journal = false;
  double checkpoint_interval_seconds = 30;
  double heartbeat_seconds = 60;
  std::string page_cache = "auto";
  std::string progress = "auto";
  bool quiet = false;
  bool verbose = false;
};

// Registers the options on `command`; the returned object is filled when the command line is
// parsed.
std::shared_ptr<JobCommandOptions> add_job_options(CLI::App& command);

// The job they ask for. kUsage for values that do not exist or do not go together.
JobOptions make_job_options(const JobCommandOptions& options);

// Whether progress is a live line ("live", and "auto" on a terminal that can show one), lines in
// the log, or neither. kUsage.
enum class ProgressKind { kLive, kLines, kNone };
ProgressKind progress_kind(const JobCommandOptions& options);

// The log they ask for. kIo.
Log open_log(const JobCommandOptions& options);

}  // namespace quantmill
