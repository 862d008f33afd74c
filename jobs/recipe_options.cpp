#include "jobs/recipe_options.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <sstream>

#include <fmt/format.h>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/file.h"
#include "plan/presets.h"
#include "plan/recipe_json.h"

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

std::shared_ptr<RecipeOptions> add_recipe_options(CLI::App& command) {
  auto options = std::make_shared<RecipeOptions>();
  const std::string group = "What to make";
  command
      .add_option(
          "--recipe",
          options->recipe_file,
          "JSON file of these settings, or a name of `quantmill recipe list`; options given "
          "here come over it")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option(
          "--scheme",
          options->scheme,
          "number format: mxfp4 (default), mxfp6-e2m3, mxfp6-e3m2, mxfp8, nvfp4, fp8-tensor, "
          "fp8-channel, fp8-block, int8, w8a16, w8a16-g128, int4-g128, int4-g32, int4-asym-g128, "
          "int4-asym-g32; bf16, f16 and f32 fold and do not quantize; source carries over what the "
          "source has, in layout qwix (default there)")
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
          "how it is stored: quark, compressed-tensors, fp8 (DeepSeek's blocks), gpt-oss (mxfp4 "
          "experts that stay one tensor, all else unquantized), qwix (JAX) or plain (default: what "
          "most readers of the scheme take)")
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
      .add_option("--rounding",
                  options->rounding,
                  "how values become codes: nearest (default), or gptq, which makes good in later "
                  "columns what earlier ones lose; needs --stats with Gram matrices "
                  "(scripts/collect --gram)")
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
      .add_option("--input-scales",
                  options->input_scales,
                  "scales of activations with fp8-tensor and nvfp4: static, from the maxima in "
                  "--stats; none: servers quantize activations as they come, with nvfp4 only "
                  "weights (vLLM takes nvfp4 activations with a stored scale alone); auto "
                  "(default): static where all maxima are there")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option(
          "--kv-cache",
          options->kv_cache,
          "fp8: tell servers to keep keys and values as e4m3, with scales from the maxima in "
          "--stats (inputs self_attn.k_cache and self_attn.v_cache of every layer); none "
          "(default)")
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
      .add_option(
          "--jax-model",
          options->jax_model,
          "layout qwix: how the JAX model names and shapes its parameters, a built-in name or "
          "a JSON file (default: nnx)")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option("--scale-type",
                  options->scale_type,
                  "layout qwix: source (default: BF16 where that is exact) or f32")
      ->type_name("NAME")
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
