#include "jobs/plan.h"

#include <iostream>

#include "base/error.h"
#include "checkpoint/reader.h"
#include "jobs/job_options.h"
#include "pipeline/load_statistics.h"
#include "pipeline/run.h"
#include "plan/architecture.h"
#include "plan/plan.h"

namespace quantmill {
namespace {

int run_plan(const JobCommandOptions& options, bool json) {
  const JobOptions job = make_job_options(options);
  const Checkpoint checkpoint = Checkpoint::open(job.source);
  Statistics statistics;
  if (job.statistics) {
    statistics = load_statistics(
        *job.statistics,
        partition_rule(choose_architecture(job.recipe.architecture, checkpoint.config_text())));
  }
  const Plan plan = job.compat_scales ? make_plan_without_search(checkpoint, job.recipe)
                                      : make_plan(checkpoint, statistics, job.recipe);
  check_resources(job, checkpoint, plan, options.num_threads);
  std::cout << (json ? plan_to_json(plan, checkpoint) : describe_plan(plan, checkpoint))
            << std::flush;
  return 0;
}

}  // namespace

void add_plan_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("plan",
                                         "Say what `quantize` would do with the same options, "
                                         "refuse what it would refuse, and do nothing");
  const std::shared_ptr<JobCommandOptions> options = add_job_options(*command);
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print the plan as JSON");
  command->callback(
      [options, json, &action] { action = [options, json] { return run_plan(*options, *json); }; });
}

}  // namespace quantmill
