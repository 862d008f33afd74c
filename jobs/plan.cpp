#include "plan.h"

#include <iostream>

#include "checkpoint/reader.h"
#include "pipeline/load_statistics.h"
#include "plan/architecture.h"
#include "plan/plan.h"
#include "recipe_options.h"

namespace quantmill {
namespace {

struct PlanOptions {
  std::string source;
  std::optional<std::string> out;
  std::optional<std::string> statistics;
  std::shared_ptr<RecipeOptions> recipe;
  bool json = false;
};

int run_plan(const PlanOptions& options) {
  const Recipe recipe = make_recipe(*options.recipe);
  const Checkpoint checkpoint = Checkpoint::open(options.source);
  Statistics statistics;
  if (options.statistics) {
    statistics = load_statistics(
        *options.statistics,
        partition_rule(recipe.architecture.empty() ? find_architecture(checkpoint.config_text())
                                                   : load_architecture(recipe.architecture)));
  }
  const Plan plan = make_plan(checkpoint, statistics, recipe);
  std::cout << (options.json ? plan_to_json(plan, checkpoint) : describe_plan(plan, checkpoint))
            << std::flush;
  return 0;
}

}  // namespace

void add_plan_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand(
      "plan", "Say what `quantize` would do with the same options, and do nothing");
  auto options = std::make_shared<PlanOptions>();
  command->add_option("SRC", options->source, "folder of the source checkpoint")->required();
  command->add_option("OUT", options->out, "folder that would be made (not touched)");
  command->add_option("--stats", options->statistics, "activation statistics, as for quantize")
      ->type_name("FILE");
  options->recipe = add_recipe_options(*command);
  command->add_flag("--json", options->json, "print the plan as JSON");
  command->callback([options, &action] { action = [options] { return run_plan(*options); }; });
}

}  // namespace quantmill
