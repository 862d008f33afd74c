// From options and a recipe file to the recipe that holds.

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/file.h"
#include "jobs/recipe_options.h"
#include "plan/presets.h"
#include "plan/recipe_json.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kMaxRecipeBytes = std::uint64_t{16} << 20;

double parse_number(std::string_view option, const std::string& text, std::string_view wanted) {
  double number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: '{}' is not a number; give {}", option, text, wanted));
  }
  return number;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

// "0,0.25,0.5" -> {0, 0.25, 0.5}
std::vector<double> parse_exponents(std::string_view option, const std::string& text) {
  std::vector<double> alphas;
  for (const std::string& part : split(text)) {
    alphas.push_back(parse_number(
        fmt::format("{} {}", option, text), part, "numbers from 0 to 1 with commas between"));
  }
  return alphas;
}

// A target given here takes the place of one in the recipe file, with what was chosen for it.
void apply_target(const RecipeOptions& options, Recipe& recipe) {
  if (options.target_bits || options.target_size) {
    recipe.target.bits.reset();
    recipe.target.bytes.reset();
    recipe.chosen.clear();
  }
  if (options.target_bits) {
    recipe.target.bits = parse_number("--target-bits", *options.target_bits, "a mean such as 4.75");
  }
  if (options.target_size) {
    recipe.target.bytes = parse_size(*options.target_size);
  }
  if (!options.target_schemes) {
    return;
  }
  recipe.target.schemes.clear();
  std::ranges::transform(
      split(*options.target_schemes), std::back_inserter(recipe.target.schemes), choice_from_name);
  if (!options.scheme && !options.recipe_file) {
    take_first_candidate(recipe);
    recipe.layout = default_layout(recipe.scheme);
  }
}

// The script has one scale rule and one way to scale.
void fix_for_seed(const RecipeOptions& options, Recipe& recipe) {
  if (options.scale_rule && recipe.scale_rule != ScaleRule::kFloor) {
    throw Error(ErrorCode::kUsage,
                "--compat seed has the scale rule floor; leave --scale-rule out");
  }
  if (recipe.scaling != Scaling::kAwqGrid || recipe.fold_scales != FoldScales::kExact) {
    throw Error(ErrorCode::kUsage,
                "--compat seed has its own scaling; leave --scaling and --fold-scales out");
  }
  recipe.scale_rule = ScaleRule::kFloor;
}

// Lays a recipe file and the options over `recipe`.
void apply_options(const RecipeOptions& options, const std::string& file_text, Recipe& recipe) {
  if (options.recipe_file) {
    with_context(*options.recipe_file, [&] { apply_recipe_json(file_text, recipe); });
  }
  if (options.scheme) {
    recipe.scheme = scheme_from_name(*options.scheme);
  }
  apply_target(options, recipe);
  if (!options.schemes.empty()) {
    recipe.schemes.clear();
    std::ranges::transform(options.schemes, std::back_inserter(recipe.schemes), parse_scheme_rule);
  }
  if (options.layout) {
    recipe.layout = layout_from_name(*options.layout);
    if (recipe.layout == Layout::kQwix && !options.scheme && !options.recipe_file) {
      recipe.scheme = Scheme::kSource;
    }
  } else if (options.scheme) {
    recipe.layout = default_layout(recipe.scheme);
  }
  if (options.scaling) {
    recipe.scaling = scaling_from_name(*options.scaling);
  }
  if (options.alphas) {
    recipe.alphas = parse_exponents("--alphas", *options.alphas);
  }
  if (options.betas) {
    recipe.betas = parse_exponents("--betas", *options.betas);
  }
  if (options.objective) {
    recipe.objective = objective_from_name(*options.objective);
  }
  if (options.scale_rule) {
    recipe.scale_rule = scale_rule_from_name(*options.scale_rule);
  }
  if (options.rounding) {
    recipe.rounding = rounding_from_name(*options.rounding);
  }
  if (options.fold_scales) {
    recipe.fold_scales = fold_scales_from_name(*options.fold_scales);
  }
  if (options.input_scales) {
    recipe.input_scales = input_scales_from_name(*options.input_scales);
  }
  if (options.kv_cache) {
    recipe.kv_cache = kv_cache_from_name(*options.kv_cache);
  }
  if (options.min_tokens) {
    recipe.min_tokens = *options.min_tokens;
  }
  if (!options.keep.empty()) {
    recipe.keep = options.keep;
  }
  if (!options.include.empty()) {
    recipe.include = options.include;
  }
  if (options.compat) {
    recipe.compat = compat_from_name(*options.compat);
  }
  if (options.architecture) {
    recipe.architecture = *options.architecture;
  }
  if (options.jax_model) {
    recipe.jax_model = *options.jax_model;
  }
  if (options.scale_type) {
    recipe.scale_type = scale_type_from_name(*options.scale_type);
  }
  if (options.max_shard_size) {
    recipe.max_shard_bytes = parse_size(*options.max_shard_size);
  }
  recipe.allow_unknown = recipe.allow_unknown || options.allow_unknown;
  recipe.untie = recipe.untie || options.untie;
  if (recipe.scheme == Scheme::kSource && !options.scaling) {
    recipe.scaling = Scaling::kNone;  // there is nothing that could be scaled
  }
}

}  // namespace

std::string read_recipe(const std::string& file_or_name) {
  if (std::filesystem::exists(file_or_name)) {
    return read_text_file(file_or_name, kMaxRecipeBytes);
  }
  return std::string(find_preset(file_or_name).json);
}

Recipe make_recipe(const RecipeOptions& options) {
  const std::string file_text = options.recipe_file ? read_recipe(*options.recipe_file) : "";
  // What is not said follows from scheme and layout, so that these come first.
  Recipe said;
  apply_options(options, file_text, said);
  Recipe recipe;
  if (said.compat != Compat::kSeed) {
    recipe = default_recipe(said.scheme, said.layout);
  }
  if (said.scaling == Scaling::kNone) {
    recipe.scale_rule = ScaleRule::kEven;  // no statistics are at hand that weigh errors
  }
  apply_options(options, file_text, recipe);
  if (recipe.compat == Compat::kSeed) {
    fix_for_seed(options, recipe);
  }
  check_recipe(recipe);
  return recipe;
}

}  // namespace quantmill
