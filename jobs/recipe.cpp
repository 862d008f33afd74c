#include "jobs/recipe.h"

#include <iostream>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/pattern.h"
#include "jobs/recipe_options.h"
#include "plan/presets.h"
#include "plan/recipe_json.h"

namespace quantmill {
namespace {

using Json = nlohmann::ordered_json;

int list_presets() {
  for (const Preset& preset : presets()) {
    std::cout << fmt::format("{:<16} {}\n", preset.name, preset.purpose);
  }
  return 0;
}

// The option that sets a key of the recipe; empty if none does.
std::string option_of(const std::string& key) {
  if (key == "schemes") {
    return "--scheme-for";
  }
  if (key == "target_schemes") {
    return "--schemes";
  }
  if (key == "chosen") {
    return "";
  }
  return "--" + (key == "architecture" ? "arch" : replace_all(key, "_", "-"));
}

// Where each setting's value comes from.
std::string origin_of(const CLI::App& command,
                      const RecipeOptions& options,
                      const Json& file,
                      const Json& plain,
                      const Json& effective,
                      const std::string& key) {
  if (std::string option = option_of(key); !option.empty() && command.count(option) > 0) {
    return option;
  }
  if (file.contains(key)) {
    return "recipe " + options.recipe_file.value_or("");
  }
  const Json usual = plain.value(key, Json(nullptr));
  return effective.at(key) == usual ? "default"
                                    : fmt::format("follows from scheme {} in layout {}, scaling {}",
                                                  effective.at("scheme").get<std::string>(),
                                                  effective.at("layout").get<std::string>(),
                                                  effective.at("scaling").get<std::string>());
}

int show_recipe(const CLI::App& command, const RecipeOptions& options, bool as_json) {
  const Json effective = Json::parse(to_json(make_recipe(options)));
  if (as_json) {
    std::cout << effective.dump(1) << '\n';
    return 0;
  }
  const Json file =
      options.recipe_file ? Json::parse(read_recipe(*options.recipe_file)) : Json::object();
  const Json plain = Json::parse(to_json(Recipe{}));
  for (const auto& [key, value] : effective.items()) {
    std::cout << fmt::format("{:<15} {:<44} {}\n",
                             key,
                             value.dump(),
                             origin_of(command, options, file, plain, effective, key));
  }
  return 0;
}

int check_recipe_file(const std::string& recipe) {
  RecipeOptions options;
  options.recipe_file = recipe;
  static_cast<void>(make_recipe(options));
  std::cout << fmt::format("{}: in order\n", recipe);
  return 0;
}

}  // namespace

void add_recipe_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* recipe =
      app.add_subcommand("recipe", "List built-in recipes; check one, or show what it comes to");
  recipe->require_subcommand(1);
  recipe->add_subcommand("list", "Name the built-in recipes and what they are for")
      ->callback([&action] { action = list_presets; });

  CLI::App* check = recipe->add_subcommand("check", "Say whether a recipe is in order");
  auto checked = std::make_shared<std::string>();
  check->add_option("RECIPE", *checked, "a JSON file, or a name of `recipe list`")->required();
  check->callback(
      [checked, &action] { action = [checked] { return check_recipe_file(*checked); }; });

  CLI::App* show = recipe->add_subcommand(
      "show", "Print every setting with its value and where that comes from");
  const std::shared_ptr<RecipeOptions> options = add_recipe_options(*show);
  auto as_json = std::make_shared<bool>(false);
  show->add_flag("--json", *as_json, "print it as a recipe file");
  show->add_option("RECIPE", options->recipe_file, "a JSON file, or a name of `recipe list`");
  show->callback([show, options, as_json, &action] {
    action = [show, options, as_json] { return show_recipe(*show, *options, *as_json); };
  });
}

}  // namespace quantmill
