// The program: reads the command line, runs one command, turns an Error into a message and an exit
// status.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "base/version.h"
#include "comm/mpi.h"
#include "device/context.h"
#include "jobs/arch.h"
#include "jobs/command_io.h"
#include "jobs/diff.h"
#include "jobs/documentation.h"
#include "jobs/inspect.h"
#include "jobs/plan.h"
#include "jobs/quantize.h"
#include "jobs/recipe.h"
#include "jobs/report.h"
#include "jobs/stats.h"
#include "jobs/verify.h"
#include "stats/h5_process.h"

namespace {

// Whether this process speaks for the job: rank 0 under mpirun or srun, or alone.
bool speaks_for_the_job() {
  return quantmill::launched_rank().value_or("0") == "0";
}

int fail(const quantmill::Error& error) {
  if (speaks_for_the_job()) {
    // In one piece: mpirun writes to the same place.
    std::fputs(fmt::format("quantmill: {}\n", error.message()).c_str(), stderr);
  }
  return static_cast<int>(error.code());
}

// The version, and what the program was built with and finds here.
std::string describe_build() {
#ifdef NDEBUG
  constexpr const char* kAssertions = "optimized";
#else
  constexpr const char* kAssertions = "with assertions";
#endif
  return fmt::format("quantmill {}\nbuilt by {} {}, {}\nthis machine: backend cpu ({})",
                     quantmill::program_version(),
#ifdef __clang__
                     "clang",
                     __clang_version__,
#else
                     "g++",
                     __VERSION__,
#endif
                     kAssertions,
                     quantmill::isa_name(quantmill::best_isa()));
}

int run(int argc, char** argv) {
  CLI::App app(
      "Quantizes large model checkpoints with activation-aware scales, on any number of MPI ranks.",
      "quantmill");
  app.set_version_flag("--version", describe_build());
  app.require_subcommand(1);
  std::function<int()> action;
  quantmill::add_quantize_command(app, action);
  quantmill::add_plan_command(app, action);
  quantmill::add_stats_command(app, action);
  quantmill::add_inspect_command(app, action);
  quantmill::add_diff_command(app, action);
  quantmill::add_verify_command(app, action);
  quantmill::add_report_command(app, action);
  quantmill::add_arch_command(app, action);
  quantmill::add_recipe_command(app, action);
  quantmill::add_documentation_commands(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& failure) {
    if (failure.get_exit_code() ==
        static_cast<int>(CLI::ExitCodes::Success)) {  // --help, --version
      if (speaks_for_the_job()) {
        (void)app.exit(failure);
        quantmill::finish_output();
      }
      return 0;
    }
    return fail({quantmill::ErrorCode::kUsage, fmt::format("{}; see --help", failure.what())});
  }
  const int status = action();
  quantmill::finish_output();
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto status = quantmill::h5::serve_read_tree({argv, static_cast<std::size_t>(argc)})) {
    return *status;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& exception) {
    return fail(quantmill::as_error(exception));
  }
}
