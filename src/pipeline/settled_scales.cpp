#include "pipeline/settled_scales.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "pipeline/assemble.h"
#include "pipeline/compat.h"
#include "pipeline/given_scales.h"
#include "pipeline/search.h"
#include "pipeline/work_folder.h"

namespace quantmill {
namespace {

// Given, searched or neutral, as the options say.
ScaleTable choose_scales(const Team& team,
                         const Context& context,
                         const Checkpoint& checkpoint,
                         const Plan& plan,
                         const Statistics& statistics,
                         const ColumnImportance& importance,
                         const std::optional<ScaleTable>& given,
                         const JobOptions& options,
                         JobJournal& journal) {
  ScaleTable scales;
  if (options.compat_scales) {
    team.world.collectively([&] { scales = read_compat_scales(*options.compat_scales, plan); });
    return scales;
  }
  if (given) {
    return *given;
  }
  return searches_scales(options)
             ? search_scales(team, context, checkpoint, plan, statistics, importance, journal)
             : neutral_scales(plan);
}

// What block scales are searched by: of the statistics, or of the file that scales come from.
ColumnImportance importance_for(const Plan& plan,
                                const Statistics& statistics,
                                const JobOptions& options) {
  return {plan.architecture,
          options.scales ? read_importance(*options.scales)
                         : make_importance(plan.architecture, statistics, plan.recipe.min_tokens)};
}

}  // namespace

JobScales settle_scales(const Team& team,
                        const Context& context,
                        const Checkpoint& checkpoint,
                        const Plan& plan,
                        const Statistics& statistics,
                        const InputMaxima& inputs,
                        const JobOptions& options,
                        JobJournal& journal) {
  std::optional<ColumnImportance> importance;
  std::optional<ScaleTable> given;
  team.world.collectively([&] {
    if (options.scales) {
      given = read_given_scales(*options.scales, plan);
    }
    importance.emplace(importance_for(plan, statistics, options));
  });
  const std::filesystem::path file = WorkFolder::output_folder(options.out) / kScalesName;
  std::vector<std::byte> stored(1);
  team.world.collectively(
      [&] { stored[0] = static_cast<std::byte>(std::filesystem::exists(file)); });
  stored = team.world.broadcast(std::move(stored), 0);
  ScaleTable scales;
  if (stored[0] == std::byte{0}) {
    scales = choose_scales(
        team, context, checkpoint, plan, statistics, *importance, given, options, journal);
    team.world.collectively([&] {
      if (team.is_leader()) {
        const bool weighs = plan.recipe.scale_rule == ScaleRule::kMse;
        write_scales(file, scales, inputs, weighs ? importance->table() : ImportanceTable());
      }
    });
  } else {
    team.world.collectively([&] { scales = read_scales(file); });
  }
  return {std::move(scales), std::move(*importance)};
}

}  // namespace quantmill
