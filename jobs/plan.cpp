#include "jobs/plan.h"

#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "base/byte_size.h"
#include "base/error.h"
#include "checkpoint/reader.h"
#include "jobs/job_options.h"
#include "pipeline/load_statistics.h"
#include "pipeline/run.h"
#include "plan/architecture.h"
#include "plan/plan.h"
#include "plan/plan_sizes.h"
#include "plan/slurm_block.h"

namespace quantmill {
namespace {

// Options that only `plan` has.
struct PlanOptions {
  bool json = false;
  std::optional<std::string> assumed_rate;
};

std::string add_rest(const std::string& plan, const std::string& sizes, const SlurmBlock& block) {
  auto json = nlohmann::ordered_json::parse(plan);
  json["sizes"] = nlohmann::ordered_json::parse(sizes);
  json["slurm"] = {{"nodes", block.nodes},
                   {"ntasks_per_node", block.tasks_per_node},
                   {"cpus_per_task", block.cpus_per_task},
                   {"mem_mib", block.memory_mib},
                   {"time_minutes", block.limit_minutes},
                   {"estimated_seconds", block.estimated_seconds},
                   {"assumed_bytes_per_second_and_core", block.assumed_rate},
                   {"block", print_slurm_block(block)}};
  return json.dump(1) + "\n";
}

int run_plan(const JobCommandOptions& options, const PlanOptions& own) {
  const JobOptions job = make_job_options(options);
  const std::uint64_t rate = own.assumed_rate ? parse_size(*own.assumed_rate) : 0;
  if (own.assumed_rate && rate == 0) {
    throw Error(ErrorCode::kUsage, "--assume-rate 0 would take forever; give bytes a second");
  }
  const Checkpoint checkpoint = Checkpoint::open(job.source);
  Statistics statistics;
  if (uses_statistics(job)) {
    statistics = load_statistics(
        *job.statistics,
        partition_rule(choose_architecture(job.recipe.architecture, checkpoint.config_text())));
  }
  const Plan plan = make_job_plan(checkpoint, statistics, job);
  const std::unique_ptr<FeedbackFactors> feedback = make_feedback(job, plan, statistics);
  check_resources(job, checkpoint, plan, feedback.get(), options.num_threads);
  const SlurmBlock block = suggest_slurm_block(plan, job.memory_bytes, options.num_threads, rate);
  std::cout << (own.json ? add_rest(plan_to_json(plan), plan_sizes_to_json(plan, checkpoint), block)
                         : describe_plan(plan, checkpoint) +
                               (feedback ? feedback->describe() + "\n" : "") +
                               describe_plan_sizes(plan, checkpoint) + describe_slurm_block(block))
            << std::flush;
  return 0;
}

}  // namespace

void add_plan_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("plan",
                                         "Say what `quantize` would do with the same options, "
                                         "refuse what it would refuse, and do nothing");
  const std::shared_ptr<JobCommandOptions> options = add_job_options(*command);
  auto own = std::make_shared<PlanOptions>();
  command->add_flag("--json", own->json, "print the plan as JSON");
  command
      ->add_option("--assume-rate",
                   own->assumed_rate,
                   "source a second that one core gets done, for the suggested Slurm job (default "
                   "50M, without a search 200M)")
      ->type_name("SIZE");
  command->callback(
      [options, own, &action] { action = [options, own] { return run_plan(*options, *own); }; });
}

}  // namespace quantmill
