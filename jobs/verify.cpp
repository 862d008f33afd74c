#include "jobs/verify.h"

#include <iostream>

#include "base/error.h"
#include "device/context.h"
#include "pipeline/verify.h"

namespace quantmill {
namespace {

struct VerifyCommandOptions {
  std::string out;
  std::optional<std::string> source;
  std::optional<std::string> statistics;
  std::string backend = "auto";
  bool function = false;
  int num_threads = 2;
};

int run_verify(const VerifyCommandOptions& options) {
  VerifyOptions verify{options.out, {}, options.statistics, options.function, options.num_threads};
  if (options.source) {
    verify.source = *options.source;
  }
  const VerifyReport report = verify_checkpoint(make_context(options.backend), verify);
  for (const std::string& line : report.passed) {
    std::cout << "ok    " << line << '\n';
  }
  for (const std::string& line : report.findings) {
    std::cout << "WRONG " << line << '\n';
  }
  std::cout << std::flush;
  return report.findings.empty() ? 0 : static_cast<int>(ErrorCode::kInput);
}

}  // namespace

void add_verify_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("verify",
                                         "Check a checkpoint that quantize made: files, structure, "
                                         "every byte against the source, the folds");
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
  command->add_option("--threads", options->num_threads, "threads (default 2)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  command->add_option("--backend", options->backend, "auto (default), cpu or reference")
      ->type_name("NAME");
  command->callback([options, &action] { action = [options] { return run_verify(*options); }; });
}

}  // namespace quantmill
