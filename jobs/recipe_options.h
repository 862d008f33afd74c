#pragma once

// The options that make a recipe, shared by every command that takes one: a recipe file first, then
// options over it.

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/recipe.h"

namespace quantmill {

// Values as given on the command line; unset ones leave the recipe file's, or the default.
struct RecipeOptions {
  std::optional<std::string> recipe_file;
  std::optional<std::string> scheme;
  std::vector<std::string> schemes;
  std::optional<std::string> target_bits;
  std::optional<std::string> target_size;
  std::optional<std::string> target_schemes;
  std::optional<std::string> layout;
  std::optional<std::string> scaling;
  std::optional<std::string> alphas;
  std::optional<std::string> betas;
  std::optional<std::string> objective;
  std::optional<std::string> scale_rule;
  std::optional<std::string> rounding;
  std::optional<std::string> fold_scales;
  std::optional<std::string> input_scales;
  std::optional<std::string> kv_cache;
  std::optional<std::uint64_t> min_tokens;
  std::vector<std::string> keep;
  std::vector<std::string> include;
  std::optional<std::string> compat;
  std::optional<std::string> architecture;
  std::optional<std::string> jax_model;
  std::optional<std::string> scale_type;
  std::optional<std::string> max_shard_size;
  bool allow_unknown = false;
  bool untie = false;
};

// Registers the options on `command`; the returned object is filled when the command line is
// parsed.
std::shared_ptr<RecipeOptions> add_recipe_options(CLI::App& command);

// The text of a recipe: of a file, or else of the built-in one of this name. kUsage if it is
// neither. kIo.
std::string read_recipe(const std::string& file_or_name);

// The effective recipe. kUsage for values that do not exist or do not go together.
// --compat seed fixes the scale rule (floor) and the scaling of the script; asking for others is an
// error.
Recipe make_recipe(const RecipeOptions& options);

}  // namespace quantmill
