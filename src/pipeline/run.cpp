#include "pipeline/run.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include <fmt/format.h>

#include "base/error.h"

#include "pipeline/assemble.h"
#include "pipeline/compat.h"
#include "pipeline/function_proof.h"
#include "pipeline/load_statistics.h"
#include "pipeline/produce.h"
#include "pipeline/search.h"
#include "pipeline/summary.h"
#include "pipeline/work_folder.h"
#include "pipeline/write.h"
#include "plan/plan.h"

namespace quantmill {
namespace {

// What a rank holds beside its workers' buffers: MPI, headers, statistics, code.
constexpr std::uint64_t kBaseBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kLargestBuffer = std::uint64_t{8}
                                         << 20;  // more does not make reading faster

// Seconds since it was made.
class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

bool needs_statistics(const JobOptions& options) {
  return options.recipe.scaling != Scaling::kNone &&
         options.recipe.fold_scales != FoldScales::kOff && !options.compat_scales;
}

Statistics statistics_for(const Team& team,
                          const Checkpoint& checkpoint,
                          const JobOptions& options) {
  if (!needs_statistics(options) || !options.statistics) {
    return {};
  }
  PartitionOf partition;
  team.world.collectively([&] {
    partition = partition_rule(options.recipe.architecture.empty()
                                   ? find_architecture(checkpoint.config_text())
                                   : load_architecture(options.recipe.architecture));
  });
  return load_statistics(team.world, *options.statistics, partition);
}

// Given, searched or neutral, as the options say.
ScaleTable choose_scales(const Team& team,
                         const Context& context,
                         const Checkpoint& checkpoint,
                         const Plan& plan,
                         const Statistics& statistics,
                         const JobOptions& options) {
  ScaleTable scales;
  if (options.compat_scales) {
    team.world.collectively([&] { scales = read_compat_scales(*options.compat_scales, plan); });
    return scales;
  }
  return needs_statistics(options) ? search_scales(team, context, checkpoint, plan, statistics)
                                   : neutral_scales(plan);
}

// The script folds what may not be folded: says so, with the number.
void warn_of_changed_function(const Team& team,
                              const Context& context,
                              const Log& log,
                              const Checkpoint& checkpoint,
                              const Plan& plan,
                              const ScaleTable& scales,
                              const std::vector<ActivationFold>& folds) {
  if (plan.recipe.compat != Compat::kSeed || !team.is_leader()) {
    return;
  }
  const std::vector<EdgeProof> edges = prove_function(context,
                                                      checkpoint,
                                                      plan,
                                                      scales,
                                                      folds,
                                                      true_architecture(checkpoint, plan),
                                                      team.num_threads);
  const EdgeProof& worst = worst_edge(edges);
  if (worst.exact > kExactTolerance) {
    log.warn(
        fmt::format("--compat seed makes a model that is not the same function as the source: its "
                    "scales change the "
                    "output of {} by {:.2g} (relative), before anything is rounded",
                    worst.reader,
                    worst.exact));
  }
}

void log_scales(const Log& log, const Plan& plan, const ScaleTable& scales) {
  for (const FoldGroup& group : plan.architecture.fold_groups) {
    const GroupScales& chosen = scales.at(group.name);
    if (chosen.reason.empty()) {
      const auto [smallest, largest] = std::ranges::minmax(chosen.s);
      log.debug(fmt::format(
          "{}: alpha {:.2f}, s {:.3g} to {:.3g}", group.name, chosen.alpha, smallest, largest));
    }
  }
}

}  // namespace

std::uint64_t worker_buffer_bytes(std::uint64_t memory_bytes,
                                  int num_threads,
                                  std::uint64_t smallest_bytes) {
  const auto threads = static_cast<std::uint64_t>(num_threads);
  const std::uint64_t needed = kBaseBytes + threads * smallest_bytes;
  if (memory_bytes < needed) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--memory {} is too little for {} threads on this model; {} is needed, "
                            "or fewer threads",
                            format_size(memory_bytes),
                            num_threads,
                            format_size(needed)));
  }
  // Half for rows as read and written, half for what is made of them.
  return std::clamp((memory_bytes - kBaseBytes) / threads / 2, smallest_bytes / 2, kLargestBuffer);
}

std::string run_job(const Team& team,
                    const Context& context,
                    const Log& log,
                    const JobOptions& options) {
  const Stopwatch total;
  std::optional<Checkpoint> checkpoint;
  team.world.collectively([&] { checkpoint = Checkpoint::open(options.source); });
  const Statistics statistics = statistics_for(team, *checkpoint, options);
  std::optional<Plan> plan;
  std::uint64_t buffer_bytes = 0;
  std::unique_ptr<WorkFolder> work;
  team.world.collectively([&] {
    plan = needs_statistics(options) ? make_plan(*checkpoint, statistics, options.recipe)
                                     : make_plan_without_search(*checkpoint, options.recipe);
    buffer_bytes = worker_buffer_bytes(options.memory_bytes,
                                       team.num_threads,
                                       RowProducer::smallest_buffer_bytes(*plan, *checkpoint));
  });
  team.world.collectively([&] {
    if (team.is_leader()) {
      work = std::make_unique<WorkFolder>(options.out, options.overwrite, options.source);
    }
  });
  for (const std::string& notice : plan->notices) {
    log.warn(notice);
  }
  log.info(
      fmt::format("plan: {} tensors, {} of source, {} of output in {} files; {} ranks on {} nodes, "
                  "{} threads each, "
                  "backend {}",
                  plan->tensors.size(),
                  format_size(plan->source_bytes),
                  format_size(plan->output_bytes),
                  plan->shards.size(),
                  team.world.size(),
                  team.node_ranks.size(),
                  team.num_threads,
                  context.backend == Backend::kCpu ? fmt::format("cpu ({})", isa_name(context.isa))
                                                   : std::string(backend_name(context.backend))));

  const Stopwatch search;
  const ScaleTable scales = choose_scales(team, context, *checkpoint, *plan, statistics, options);
  log_scales(log, *plan, scales);
  if (!plan->search_tasks.empty()) {
    log.info(fmt::format("search: {} candidates for {} fold groups in {:.1f} s",
                         plan->recipe.alphas.size(),
                         std::ranges::count_if(plan->groups, &GroupPlan::searched),
                         search.seconds()));
  }

  const Stopwatch writing;
  std::vector<ActivationFold> folds;
  team.world.collectively([&] {
    folds = make_fold_table(context, *checkpoint, *plan, scales);
    warn_of_changed_function(team, context, log, *checkpoint, *plan, scales, folds);
  });
  const std::filesystem::path folder = WorkFolder::path_for(options.out);
  const WrittenShards shards =
      write_shards(team, context, *checkpoint, *plan, folds, folder, buffer_bytes);
  log.info(fmt::format("write: {} in {:.1f} s, {} of source",
                       format_size(plan->output_bytes),
                       writing.seconds(),
                       format_rate(plan->source_bytes, writing.seconds())));

  team.world.collectively([&] {
    if (team.is_leader()) {
      assemble(log, *checkpoint, *plan, scales, shards, folder);
      work->commit();
    }
  });
  return plan->recipe.compat == Compat::kSeed
             ? seed_report(options.out, scales, *plan, shards.tensors)
             : describe_result(
                   options.source, options.out, *plan, scales, shards.tensors, total.seconds());
}

}  // namespace quantmill
