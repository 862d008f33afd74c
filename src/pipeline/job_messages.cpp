#include "pipeline/job_messages.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/byte_size.h"
#include "pipeline/function_proof.h"

namespace quantmill {

void warn_of_changed_function(const Team& team,
                              const Context& context,
                              const Log& log,
                              const Checkpoint& checkpoint,
                              const Plan& plan,
                              const ScaleTable& scales,
                              const std::vector<ActivationFold>& folds) {
  if (plan.recipe.compat != Compat::kSeed) {
    return;
  }
  std::optional<ResolvedArchitecture> truth;
  team.world.collectively([&] { truth = true_architecture(checkpoint, plan); });
  const std::vector<EdgeProof> edges =
      prove_function(team, context, checkpoint, plan, scales, folds, *truth);
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
      log.debug(fmt::format("{}: alpha {:.2f}, beta {:.2f}, s {:.3g} to {:.3g}",
                            group.name,
                            chosen.alpha,
                            chosen.beta,
                            smallest,
                            largest));
    }
  }
}

void log_plan(const Team& team, const Context& context, const Log& log, const Plan& plan) {
  for (const std::string& notice : plan.notices) {
    log.warn(notice);
  }
  log.info(fmt::format("plan: {} tensors, {} of source, {} of output in {} files",
                       plan.tensors.size(),
                       format_size(plan.source_bytes),
                       format_size(plan.output_bytes),
                       plan.shards.size()));
  log.info(fmt::format("{} ranks on {} nodes, {} threads each, backend {}",
                       team.world.size(),
                       team.node_ranks.size(),
                       team.num_threads,
                       describe_backend(context)));
}

}  // namespace quantmill
