#include "jobs/plan.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "checkpoint/links.h"
#include "device/context.h"
#include "jobs/job_options.h"
#include "pipeline/estimate.h"
#include "pipeline/load_statistics.h"
#include "pipeline/pilot.h"
#include "pipeline/run.h"
#include "pipeline/run_record.h"
#include "pipeline/target_choice.h"
#include "pipeline/team.h"
#include "plan/architecture.h"
#include "plan/plan.h"
#include "plan/plan_sizes.h"
#include "plan/slurm_block.h"
#include "plan/target.h"

namespace quantmill {
namespace {

constexpr double kMeasuringSeconds = 5;

// Options that only `plan` has.
struct PlanOptions {
  bool json = false;
  bool measure = false;
  int ranks = 1;
  std::optional<std::string> assumed;
};

std::string add_rest(const std::string& plan,
                     const std::string& sizes,
                     const Estimate& estimate,
                     const SlurmBlock& block) {
  nlohmann::ordered_json json;
  json["sizes"] = nlohmann::ordered_json::parse(sizes);
  json["estimate"] = nlohmann::ordered_json::parse(estimate_to_json(estimate));
  json["slurm"] = {{"nodes", block.nodes},
                   {"ntasks_per_node", block.tasks_per_node},
                   {"cpus_per_task", block.cpus_per_task},
                   {"mem_mib", block.memory_mib},
                   {"time_minutes", block.limit_minutes},
                   {"estimated_seconds", block.estimated_seconds},
                   {"assumed_bytes_per_second_and_core", block.assumed_rate},
                   {"block", print_slurm_block(block)}};
  // Joined as text: as one value of JSON a plan of 70,000 tensors takes seconds to read.
  return plan.substr(0, plan.rfind("\n}")) + "," + json.dump(1).substr(1) + "\n";
}

void check_no_holes(const Checkpoint& checkpoint, std::string_view option) {
  for (const SourceShard& shard : checkpoint.shards()) {
    if (File::open_to_read(checkpoint.folder() / shard.file_name).has_hole()) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}: {} has a hole where data should be: headers alone can't be "
                              "measured; {}",
                              option,
                              (checkpoint.folder() / shard.file_name).string(),
                              option == "--measure" ? "give speeds with --assume"
                                                    : "give a table that is there already"));
    }
  }
}

// The process as a job of one rank; MPI starts once at most, and only where weights are read.
class OneRank {
 public:
  void start() {
    if (!mpi_) {
      catch_interrupts();
      mpi_.emplace();
    }
  }

 private:
  std::optional<MpiEnvironment> mpi_;
};

// The same job on the ranks and threads that are asked for, on this machine.
Estimate measure(const JobCommandOptions& options,
                 const JobOptions& job,
                 const Checkpoint& checkpoint,
                 Plan& plan,
                 const Statistics& statistics,
                 FeedbackFactors* feedback,
                 const JobSize& size,
                 OneRank& rank) {
  check_no_holes(checkpoint, "--measure");
  rank.start();
  const int num_threads = std::min(size.ranks * size.threads, usable_cores());
  const Device device =
      open_device(device_request(make_team(num_threads, 0), options.backend, options.gpu_memory));
  const Pilot pilot = run_pilot(device.context,
                                checkpoint,
                                plan,
                                statistics,
                                feedback,
                                {num_threads,
                                 size.buffer_bytes,
                                 kMeasuringSeconds,
                                 std::filesystem::absolute(job.out).parent_path()});
  return estimate_job(plan, pilot, size);
}

// The errors that schemes are chosen by: as stored, or measured now.
ErrorTable find_errors(const JobCommandOptions& options,
                       const JobOptions& job,
                       const Checkpoint& checkpoint,
                       const Statistics& statistics,
                       const TargetProblem& problem,
                       OneRank& rank) {
  if (std::optional<ErrorTable> table = stored_error_table(checkpoint, statistics, job, problem)) {
    return std::move(*table);
  }
  check_no_holes(checkpoint, "--error-table");
  rank.start();
  std::cerr << "quantmill: plan reads the weights to measure the errors of schemes"
            << (job.error_table ? "\n"
                                : "; --error-table FILE would keep them for other targets\n");
  const Team team = make_team(options.num_threads, 0);
  const Device device = open_device(device_request(team, options.backend, options.gpu_memory));
  return make_error_table(team, device.context, checkpoint, statistics, job, problem);
}

// With a target, chooses schemes for it first.
Plan plan_job(const JobCommandOptions& options,
              JobOptions& job,
              const Checkpoint& checkpoint,
              const Statistics& statistics,
              OneRank& rank) {
  if (!awaits_choice(job.recipe)) {
    return make_job_plan(checkpoint, statistics, job);
  }
  const TargetProblem problem = make_target_problem(checkpoint, job.recipe);
  const std::uint64_t budget = target_budget(
      problem, smallest_choice(checkpoint, statistics, job, problem).plan.output_bytes);
  const ErrorTable table = find_errors(options, job, checkpoint, statistics, problem, rank);
  TargetChoice choice = choose_for_target(checkpoint, statistics, job, problem, table, budget);
  job.recipe = std::move(choice.recipe);
  choice.plan.target_errors = chosen_errors(choice.plan, table);
  return std::move(choice.plan);
}

int run_plan(const JobCommandOptions& options, const PlanOptions& own) {
  const auto begun = std::chrono::steady_clock::now();
  JobOptions job = make_job_options(options);
  AssumedSpeeds speeds;
  if (own.assumed) {
    speeds = parse_speeds(*own.assumed, speeds);
  }
  const Checkpoint checkpoint = open_source(job.source, job.follow_links);
  Statistics statistics;
  if (uses_statistics(job)) {
    statistics = load_statistics(
        *job.statistics,
        partition_rule(choose_architecture(job.recipe.architecture, checkpoint.config_text())));
  }
  OneRank rank;
  Plan plan = plan_job(options, job, checkpoint, statistics, rank);
  const std::unique_ptr<FeedbackFactors> feedback = make_feedback(job, plan, statistics);
  JobSize size;
  size.buffer_bytes =
      check_resources(job, checkpoint, plan, statistics, feedback.get(), options.num_threads);
  size.ranks = own.ranks;
  size.threads =
      options.num_threads > 0 ? options.num_threads : std::max(1, usable_cores() / own.ranks);
  size.factor_bytes = feedback ? feedback->needed_bytes(size.threads) : 0;
  size.process_bytes = peak_memory_bytes();
  size.plan_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  if (speeds.rate == 0) {
    speeds.rate = static_cast<double>(plan.search_tasks.empty() ? kAssumedRateWithoutSearch
                                                                : kAssumedRateWithSearch);
  }
  const Estimate estimate =
      own.measure ? measure(options, job, checkpoint, plan, statistics, feedback.get(), size, rank)
                  : estimate_job(plan, speeds, size);
  const auto rate = static_cast<std::uint64_t>(
      std::max(1.0, static_cast<double>(plan.source_bytes) / estimate.core_seconds));
  const SlurmBlock block =
      suggest_slurm_block(plan, job.memory_bytes, options.num_threads, rate, estimate.is_measured);
  std::cout << (own.json
                    ? add_rest(
                          plan_to_json(plan), plan_sizes_to_json(plan, checkpoint), estimate, block)
                    : describe_plan(plan, checkpoint) +
                          (feedback ? feedback->describe() + "\n" : "") +
                          describe_plan_sizes(plan, checkpoint) + describe_estimate(estimate) +
                          describe_slurm_block(block));
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
  CLI::Option* measure = command->add_flag(
      "--measure",
      own->measure,
      "estimate the time by doing a few of the job's tasks here, for about 5 seconds, and writing "
      "a file beside OUT meanwhile");
  command
      ->add_option("--assume",
                   own->assumed,
                   "estimate it from bytes a second, as read=2G,write=1G,rate=50M: what the file "
                   "system reads and writes (default: no limit), and source that one core gets "
                   "done (default 50M, without a search 200M)")
      ->type_name("SPEEDS")
      ->excludes(measure);
  command->add_option("--ranks", own->ranks, "ranks to estimate for (default 1)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  command->callback(
      [options, own, &action] { action = [options, own] { return run_plan(*options, *own); }; });
}

}  // namespace quantmill
