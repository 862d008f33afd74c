#include "jobs/quantize.h"

#include <cstdio>
#include <iostream>

#include <fmt/format.h>

#include "base/error.h"

#include "base/interrupt.h"
#include "base/log.h"
#include "device/context.h"
#include "jobs/job_options.h"
#include "pipeline/run.h"
#include "pipeline/team.h"
#include "pipeline/work_folder.h"

namespace quantmill {
namespace {

int run_quantize(const JobCommandOptions& options) {
  catch_interrupts();
  const MpiEnvironment mpi;
  Team team = make_team(options.num_threads, options.ranks_per_node);
  Log log;
  try {
    Device device;
    JobOptions job;
    team.world.collectively([&] {
      if (team.is_leader()) {
        log = open_log(options);
      }
      device = open_device(device_request(team, options.backend, options.gpu_memory));
      job = make_job_options(options);
    });
    if (job.heartbeat.count() > 0) {
      team.heartbeat = {log,
                        job.heartbeat,
                        WorkFolder::journal_folder(job.out),
                        progress_kind(options) != ProgressKind::kNone};
    }
    if (!device.notice.empty()) {
      log.info(fmt::format("backend {}: {}", describe_backend(device.context), device.notice));
    }
    const std::string report = run_job(team, device.context, log, job);
    if (team.is_leader()) {
      std::cout << report;
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
    std::fputs(fmt::format("quantmill: rank {}: {}\n", team.world.rank(), error.message()).c_str(),
               stderr);
    team.world.abort(status);
  }
}

}  // namespace

void add_quantize_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand(
      "quantize", "Quantize a checkpoint; under mpirun or srun on any number of ranks");
  const std::shared_ptr<JobCommandOptions> options = add_job_options(*command);
  command->callback([options, &action] { action = [options] { return run_quantize(*options); }; });

  CLI::App* convert = app.add_subcommand(
      "convert",
      "Quantize or convert without statistics: round to nearest, or carry codes over that the "
      "source has already. As quantize with --scaling none");
  const std::shared_ptr<JobCommandOptions> convert_options = add_job_options(*convert);
  convert->callback([convert_options, &action] {
    convert_options->recipe->scaling = "none";
    if (convert_options->statistics || convert_options->scales) {
      throw Error(ErrorCode::kUsage, "convert scales nothing; with --stats or --scales, quantize");
    }
    action = [convert_options] { return run_quantize(*convert_options); };
  });
}

}  // namespace quantmill
