#include "jobs/job_options.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/terminal.h"

namespace quantmill {

std::shared_ptr<JobCommandOptions> add_job_options(CLI::App& command) {
  auto options = std::make_shared<JobCommandOptions>();
  command.add_option("SRC", options->source, "folder of the source checkpoint (safetensors)")
      ->required();
  command.add_option("OUT", options->out, "folder to make; it appears when it is complete")
      ->required();
  command
      .add_option("--stats",
                  options->statistics,
                  "activation statistics: an HDF5 file of `quantmill stats`, or the PREFIX "
                  "of PREFIX.tp0.pt, PREFIX.tp1.pt …")
      ->type_name("FILE");
  options->recipe = add_recipe_options(command);
  command
      .add_option("--compat-scales",
                  options->compat_scales,
                  "JSON with the scales (s_f32_hex) that --compat seed is to use")
      ->type_name("FILE")
      ->group("What to make");
  command
      .add_option("--scales",
                  options->scales,
                  "use these scales, a quantmill_scales.h5 of an earlier job, instead of a search")
      ->type_name("FILE")
      ->group("What to make");
  command
      .add_option(
          "--error-table",
          options->error_table,
          "errors of schemes for --target-bits and --target-size: read from this file if it "
          "is there, else measured and written to it, by plan too, for other targets")
      ->type_name("FILE")
      ->group("What to make");
  const std::string group = "How to run";
  command
      .add_option("--check-tp",
                  options->check_tensor_parallel,
                  "refuse what N tensor-parallel ranks of a server could not split between blocks "
                  "that share a scale")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20))
      ->group("What to make");
  command.add_option("--memory", options->memory, "bound of each rank's memory (default 2G)")
      ->type_name("SIZE")
      ->group(group);
  command
      .add_option("--threads",
                  options->num_threads,
                  "threads of each rank (default: the node's cores shared out)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->group(group);
  command
      .add_option("--page-cache",
                  options->page_cache,
                  "what is read and written: keep it in the system's cache, drop it at once, or "
                  "auto (default): drop what takes more than half of the memory")
      ->type_name("USE")
      ->check(CLI::IsMember({"auto", "keep", "drop"}))
      ->group(group);
  command
      .add_option("--backend",
                  options->backend,
                  "auto (default): the GPU where the build and the machine have one; cpu, cuda, "
                  "emulated (the GPU's kernels on the CPU, slow) or reference (slow, defines the "
                  "result). The bytes are the same on all")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--gpu-memory",
                  options->gpu_memory,
                  "bound of each rank's memory on its GPU (default 512M a thread, or what is free)")
      ->type_name("SIZE")
      ->group(group);
  command
      .add_flag("--overwrite",
                options->overwrite,
                "replace OUT, at the moment when the new one is complete")
      ->group(group);
  command
      .add_flag("--follow-links",
                options->follow_links,
                "copy what files of SOURCE link to outside its folder, too")
      ->group(group);
  CLI::Option* resume =
      command
          .add_flag("--resume",
                    options->resume,
                    "go on with an unfinished job of the same OUT; without one, start")
          ->group(group);
  command.add_flag("--restart", options->restart, "throw an unfinished job of the same OUT away")
      ->excludes(resume)
      ->group(group);
  command
      .add_option("--checkpoint-interval",
                  options->checkpoint_interval_seconds,
                  "seconds of finished work that a crash may cost (default 30)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 3600.0))
      ->group(group);
  command
      .add_option("--heartbeat",
                  options->heartbeat_seconds,
                  "seconds between lines of progress; a rank that finishes nothing for so long is "
                  "named (default 60, 0: neither)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0))
      ->group(group);
  command
      .add_option("--progress",
                  options->progress,
                  "auto (default): one line that changes where stderr is a terminal, lines in the "
                  "log elsewhere; live, lines or none. Under mpirun stderr is no terminal: live "
                  "asks for it there, COLUMNS says how wide it is")
      ->type_name("KIND")
      ->check(CLI::IsMember({"auto", "live", "lines", "none"}))
      ->group(group);
  command
      .add_flag("--no-journal",
                options->no_journal,
                "keep no record of finished work: nothing to resume from")
      ->excludes(resume)
      ->group(group);
  command.add_option("--log-json", options->log_json, "also write the log as JSON lines")
      ->type_name("FILE")
      ->group(group);
  command.add_flag("--quiet", options->quiet, "log warnings only")->group(group);
  command.add_flag("--verbose", options->verbose, "log every fold group")->group(group);
  command
      .add_option("--ranks-per-node",
                  options->ranks_per_node,
                  "treat every N ranks as a node of their own (for tests)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
  return options;
}

namespace {

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<long>(std::ceil(seconds * 1000)));
}

// This process's, as it was started.
std::vector<std::string> command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, '\0');) {
    words.push_back(word);
  }
  return words;
}

}  // namespace

JobOptions make_job_options(const JobCommandOptions& options) {
  JobOptions job;
  job.source = options.source;
  job.out = options.out;
  job.statistics = options.statistics;
  job.compat_scales = options.compat_scales;
  job.scales = options.scales;
  job.error_table = options.error_table;
  job.recipe = make_recipe(*options.recipe);
  if (job.error_table && !awaits_choice(job.recipe)) {
    throw Error(ErrorCode::kUsage,
                "--error-table serves --target-bits and --target-size; add one, or leave it out");
  }
  job.command = command_line();
  job.check_tensor_parallel = options.check_tensor_parallel;
  job.memory_bytes = parse_size(options.memory);
  job.page_cache = options.page_cache == "keep"   ? PageCache::kKeep
                   : options.page_cache == "drop" ? PageCache::kDrop
                                                  : PageCache::kAuto;
  job.overwrite = options.overwrite;
  job.follow_links = options.follow_links;
  job.start = options.resume    ? StartMode::kResume
              : options.restart ? StartMode::kRestart
                                : StartMode::kStart;
  job.journal = !options.no_journal;
  job.checkpoint_interval = to_milliseconds(options.checkpoint_interval_seconds);
  job.heartbeat = to_milliseconds(options.heartbeat_seconds);
  if (job.compat_scales && job.recipe.compat != Compat::kSeed) {
    throw Error(ErrorCode::kUsage,
                "--compat-scales gives the scales of --compat seed; add that, or leave it out");
  }
  if (job.scales && (job.compat_scales || job.statistics)) {
    throw Error(ErrorCode::kUsage,
                "--scales are used as they are: leave --stats and --compat-scales out");
  }
  return job;
}

ProgressKind progress_kind(const JobCommandOptions& options) {
  if (options.progress == "live" && options.heartbeat_seconds == 0) {
    throw Error(ErrorCode::kUsage,
                "--heartbeat 0 watches nothing, so that --progress live has nothing to show");
  }
  const char* const terminal = std::getenv("TERM");
  const bool is_dumb = terminal != nullptr && std::string(terminal) == "dumb";
  const bool is_live = options.progress == "live" && !is_dumb;
  if (options.progress == "none") {
    return ProgressKind::kNone;
  }
  return is_live || (options.progress == "auto" && has_live_terminal()) ? ProgressKind::kLive
                                                                        : ProgressKind::kLines;
}

Log open_log(const JobCommandOptions& options) {
  LogOptions log;
  log.level = options.quiet     ? LogLevel::kWarning
              : options.verbose ? LogLevel::kDebug
                                : LogLevel::kInfo;
  log.live = progress_kind(options) == ProgressKind::kLive;
  if (options.log_json) {
    log.json_file = *options.log_json;
  }
  return Log::open(log);
}

}  // namespace quantmill
