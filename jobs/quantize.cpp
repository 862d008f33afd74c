#include "quantize.h"

#include <chrono>
#include <iostream>

#include <fmt/format.h>

#include "base/error.h"

#include "base/interrupt.h"
#include "base/log.h"
#include "device/context.h"
#include "pipeline/run.h"
#include "pipeline/team.h"
#include "recipe_options.h"

namespace quantmill {
namespace {

struct QuantizeOptions {
  std::string source;
  std::string out;
  std::optional<std::string> statistics;
  std::optional<std::string> compat_scales;
  std::shared_ptr<RecipeOptions> recipe;
  std::string memory = "2G";
  std::string backend = "auto";
  std::optional<std::string> log_json;
  int num_threads = 0;
  int ranks_per_node = 0;
  bool overwrite = false;
  bool resume = false;
  bool restart = false;
  bool no_journal = false;
  double checkpoint_interval = 30;
  bool quiet = false;
  bool verbose = false;
};

JobOptions make_job_options(const QuantizeOptions& options) {
  JobOptions job;
  job.source = options.source;
  job.out = options.out;
  job.statistics = options.statistics;
  job.compat_scales = options.compat_scales;
  job.recipe = make_recipe(*options.recipe);
  job.memory_bytes = parse_size(options.memory);
  job.overwrite = options.overwrite;
  job.start = options.resume    ? StartMode::kResume
              : options.restart ? StartMode::kRestart
                                : StartMode::kStart;
  job.journal = !options.no_journal;
  job.checkpoint_interval =
      std::chrono::milliseconds(static_cast<long>(options.checkpoint_interval * 1000));
  if (job.compat_scales && job.recipe.compat != Compat::kSeed) {
    throw Error(ErrorCode::kUsage,
                "--compat-scales gives the scales of --compat seed; add that, or leave it out");
  }
  return job;
}

Log open_log(const QuantizeOptions& options) {
  LogOptions log;
  log.level = options.quiet     ? LogLevel::kWarning
              : options.verbose ? LogLevel::kDebug
                                : LogLevel::kInfo;
  if (options.log_json) {
    log.json_file = *options.log_json;
  }
  return Log::open(log);
}

int run_quantize(const QuantizeOptions& options) {
  catch_interrupts();
  const MpiEnvironment mpi;
  const Team team = make_team(options.num_threads, options.ranks_per_node);
  Log log;
  try {
    Context context;
    JobOptions job;
    team.world.collectively([&] {
      if (team.is_leader()) {
        log = open_log(options);
      }
      context = make_context(options.backend);
      job = make_job_options(options);
    });
    const std::string report = run_job(team, context, log, job);
    if (team.is_leader()) {
      std::cout << report << std::flush;
    }
    return 0;
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    const auto status = static_cast<int>(error.code());
    if (error.is_agreed()) {
      if (team.is_leader()) {
        const std::string hint =
            error.code() == ErrorCode::kInterrupted && !options.no_journal
                ? "; finished work is kept: the same command with --resume goes on"
                : "";
        log.failure(error.message() + hint);
      }
      return status;
    }
    // The ranks are out of step: waiting for each other would never end.
    std::cerr << "quantmill: rank " << team.world.rank() << ": " << error.message() << std::endl;
    team.world.abort(status);
  }
}

}  // namespace

void add_quantize_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand(
      "quantize", "Quantize a checkpoint; under mpirun or srun on any number of ranks");
  auto options = std::make_shared<QuantizeOptions>();
  command->add_option("SRC", options->source, "folder of the source checkpoint (safetensors)")
      ->required();
  command->add_option("OUT", options->out, "folder to make; it appears when it is complete")
      ->required();
  command
      ->add_option("--stats",
                   options->statistics,
                   "activation statistics: an HDF5 file of `quantmill stats`, or the PREFIX "
                   "of PREFIX.tp0.pt, PREFIX.tp1.pt …")
      ->type_name("FILE");
  options->recipe = add_recipe_options(*command);
  command
      ->add_option("--compat-scales",
                   options->compat_scales,
                   "JSON with the scales (s_f32_hex) that --compat seed is to use")
      ->type_name("FILE")
      ->group("What to make");
  const std::string group = "How to run";
  command->add_option("--memory", options->memory, "bound of each rank's memory (default 2G)")
      ->type_name("SIZE")
      ->group(group);
  command
      ->add_option("--threads",
                   options->num_threads,
                   "threads of each rank (default: the node's cores shared out)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->group(group);
  command
      ->add_option("--backend",
                   options->backend,
                   "auto (default), cpu, or reference: slow, defines the result")
      ->type_name("NAME")
      ->group(group);
  command
      ->add_flag("--overwrite",
                 options->overwrite,
                 "replace OUT, at the moment when the new one is complete")
      ->group(group);
  CLI::Option* resume =
      command
          ->add_flag("--resume",
                     options->resume,
                     "go on with an unfinished job of the same OUT; without one, start")
          ->group(group);
  command->add_flag("--restart", options->restart, "throw an unfinished job of the same OUT away")
      ->excludes(resume)
      ->group(group);
  command
      ->add_option("--checkpoint-interval",
                   options->checkpoint_interval,
                   "seconds of finished work that a crash may cost (default 30)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 3600.0))
      ->group(group);
  command
      ->add_flag("--no-journal",
                 options->no_journal,
                 "keep no record of finished work: nothing to resume from")
      ->excludes(resume)
      ->group(group);
  command->add_option("--log-json", options->log_json, "also write the log as JSON lines")
      ->type_name("FILE")
      ->group(group);
  command->add_flag("--quiet", options->quiet, "log warnings only")->group(group);
  command->add_flag("--verbose", options->verbose, "log every fold group")->group(group);
  command
      ->add_option("--ranks-per-node",
                   options->ranks_per_node,
                   "treat every N ranks as a node of their own (for tests)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
  command->callback([options, &action] { action = [options] { return run_quantize(*options); }; });
}

}  // namespace quantmill
