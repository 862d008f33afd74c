#include "jobs/recipe_options.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>

#include <fmt/format.h>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/file.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kMaxRecipeBytes = std::uint64_t{16} << 20;

// "0,0.25,0.5" -> {0, 0.25, 0.5}
std::vector<double> parse_exponents(std::string_view option, const std::string& text) {
  std::vector<double> alphas;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    double alpha = 0;
    const auto [end, failure] = std::from_chars(part.data(), part.data() + part.size(), alpha);
    if (failure != std::errc() || end != part.data() + part.size()) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("{} {}: '{}' is not a number; give numbers from 0 to 1 with commas between",
                      option,
                      text,
                      part));
    }
    alphas.push_back(alpha);
  }
  return alphas;
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
  if (!options.schemes.empty()) {
    recipe.schemes.clear();
    std::ranges::transform(options.schemes, std::back_inserter(recipe.schemes), parse_scheme_rule);
  }
  if (options.layout) {
    recipe.layout = layout_from_name(*options.layout);
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
  if (options.fold_scales) {
    recipe.fold_scales = fold_scales_from_name(*options.fold_scales);
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
  if (options.max_shard_size) {
    recipe.max_shard_bytes = parse_size(*options.max_shard_size);
  }
  recipe.allow_unknown = recipe.allow_unknown || options.allow_unknown;
  recipe.untie = recipe.untie || options.untie;
}

}  // namespace

std::shared_ptr<RecipeOptions> add_recipe_options(CLI::App& command) {
  auto options = std::make_shared<RecipeOptions>();
  const std::string group = "What to make";
  command
      .add_option("--recipe",
                  options->recipe_file,
                  "JSON file of these settings; options given here come over it")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option(
          "--scheme",
          options->scheme,
          "number format: mxfp4 (default), mxfp6-e2m3, mxfp6-e3m2, fp8-channel, fp8-block, int8, "
          "int4-g128, int4-g32; bf16 and f32 fold and do not quantize")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--scheme-for",
                  options->schemes,
                  "another scheme, or keep, for the tensors or modules that match, e.g. "
                  "'*.self_attn.*=fp8-channel' (repeatable: the first that matches counts, after "
                  "--keep)")
      ->type_name("PATTERN=SCHEME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  command
      .add_option(
          "--layout",
          options->layout,
          "how it is stored: quark, compressed-tensors, fp8 (DeepSeek's blocks) or plain (default: "
          "what most readers of the scheme take)")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--scaling",
                  options->scaling,
                  "activation-aware scales, of --stats: block-grid (default of mxfp4), awq-grid "
                  "(of others), "
                  "balance; or none")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--alphas",
                  options->alphas,
                  "exponents of mean |x| that awq-grid tries (default 0,0.1,…,1)")
      ->type_name("LIST")
      ->group(group);
  command
      .add_option("--betas",
                  options->betas,
                  "exponents of 1 / |w| that awq-grid tries with each of --alphas (default 0)")
      ->type_name("LIST")
      ->group(group);
  command
      .add_option(
          "--objective",
          options->objective,
          "what the search makes small: the error of rounding weights, w4a16, or of weights and "
          "activations, w4a4 (default of mxfp4 in layout quark)")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--scale-rule",
                  options->scale_rule,
                  "scale of a block: by its maximum, even (default), floor, rceil or ceil; or mse "
                  "(default of mxfp4 with scaling), searched for the least error, which statistics "
                  "weigh where there are some")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--fold-scales",
                  options->fold_scales,
                  "exact (default), pow2 (powers of two: folding rounds nothing at all) or off")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option(
          "--min-tokens",
          options->min_tokens,
          "leave unscaled what fewer tokens reached while statistics were recorded, such as "
          "experts that are rarely used (default 32)")
      ->type_name("N")
      ->group(group);
  command
      .add_option("--keep",
                  options->keep,
                  "leave what matches unquantized, e.g. '*.down_proj' (repeatable)")
      ->type_name("PATTERN")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  command
      .add_option("--include",
                  options->include,
                  "quantize a part of the model that otherwise stays as it is, e.g. mtp "
                  "(repeatable)")
      ->type_name("PART")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  command
      .add_option("--arch",
                  options->architecture,
                  "architecture: a built-in name or a JSON file (default: by config.json)")
      ->type_name("FILE")
      ->group(group);
  command
      .add_flag("--allow-unknown",
                options->allow_unknown,
                "copy tensors that the architecture does not mention")
      ->group(group);
  command
      .add_flag("--untie",
                options->untie,
                "keep embeddings apart that config.json calls tied and that differ, and say so in "
                "the output's config.json")
      ->group(group);
  command
      .add_option("--max-shard-size",
                  options->max_shard_size,
                  "cut the output into files of at most this size, e.g. 4G "
                  "(default: the source's files)")
      ->type_name("SIZE")
      ->group(group);
  command
      .add_option("--compat",
                  options->compat,
                  "seed: do what the script quantize_dflash_mxfp4.py does, faults included")
      ->type_name("NAME")
      ->group(group);
  return options;
}

Recipe make_recipe(const RecipeOptions& options) {
  const std::string file_text =
      options.recipe_file ? read_text_file(*options.recipe_file, kMaxRecipeBytes) : "";
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
