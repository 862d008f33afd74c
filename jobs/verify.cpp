#include "jobs/verify.h"

#include <cstdio>
#include <iostream>

#include <fmt/format.h>

#include "base/error.h"
#include "base/interrupt.h"
#include "device/context.h"
#include "pipeline/team.h"
#include "pipeline/verify.h"

namespace quantmill {
namespace {

struct VerifyCommandOptions {
  std::string out;
  std::optional<std::string> source;
  std::optional<std::string> statistics;
  std::string backend = "auto";
  std::optional<std::string> gpu_memory;
  bool function = false;
  int num_threads = 0;
};

// Exit status by the first check that found something; see the README.
int status_of(const VerifyReport& report) {
  constexpr int kFirst = 10;
  return report.first ? kFirst + static_cast<int>(*report.first) : 0;
}

void print(const VerifyReport& report) {
  for (const std::string& line : report.passed) {
    std::cout << "ok    " << line << '\n';
  }
  for (const std::string& line : report.findings) {
    std::cout << "WRONG " << line << '\n';
  }
}

int run_verify(const VerifyCommandOptions& options) {
  catch_interrupts();
  const MpiEnvironment mpi;
  const Team team = make_team(options.num_threads, 0);
  VerifyOptions verify{options.out, {}, options.statistics, options.function};
  if (options.source) {
    verify.source = *options.source;
  }
  try {
    Device device;
    team.world.collectively(
        [&] { device = open_device(device_request(team, options.backend, options.gpu_memory)); });
    const VerifyReport report = verify_checkpoint(team, device.context, verify);
    if (team.is_leader()) {
      print(report);
    }
    return status_of(report);
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    if (!error.is_agreed()) {  // the ranks are out of step: waiting for each other would never end
      std::fputs(
          fmt::format("quantmill: rank {}: {}\n", team.world.rank(), error.message()).c_str(),
          stderr);
      team.world.abort(static_cast<int>(error.code()));
    }
    if (team.is_leader()) {
      std::fputs(fmt::format("quantmill: {}\n", error.message()).c_str(), stderr);
    }
    return static_cast<int>(error.code());
  }
}

}  // namespace

void add_verify_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("verify",
                                         "Check a checkpoint that quantize made: files, structure, "
                                         "every byte against the source, the folds; under mpirun "
                                         "or srun on any number of ranks");
  auto options = std::make_shared<VerifyCommandOptions>();
  command->add_option("OUT", options->out, "folder of the checkpoint to check")->required();
  command
      ->add_option(
          "--against", options->source, "source checkpoint: make every byte again and compare")
      ->type_name("SRC");
  command
      ->add_option("--stats",
                   options->statistics,
                   "with --against, of a checkpoint that was rounded by gptq: its statistics")
      ->type_name("FILE");
  command->add_flag("--function",
                    options->function,
                    "prove that folding left the function as it was: random inputs through every "
                    "producer and reader");
  command
      ->add_option("--threads",
                   options->num_threads,
                   "threads of each rank (default: the node's cores shared out)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--backend",
                   options->backend,
                   "auto (default), cpu, cuda, emulated or reference, as in quantize")
      ->type_name("NAME");
  command->add_option("--gpu-memory", options->gpu_memory, "bound of each rank's memory on its GPU")
      ->type_name("SIZE");
  command->callback([options, &action] { action = [options] { return run_verify(*options); }; });
}

}  // namespace quantmill
