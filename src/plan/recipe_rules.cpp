// What a recipe is where nothing is said, what follows from it, and what can't go together.

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "plan/recipe.h"

namespace quantmill {

namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kUsage, message);
}

// That the recipe may give to some tensor.
std::vector<Scheme> schemes_of(const Recipe& recipe) {
  std::vector<Scheme> schemes = {recipe.scheme};
  for (const SchemeRule& rule : recipe.schemes) {
    if (rule.scheme) {
      schemes.push_back(*rule.scheme);
    }
  }
  if (recipe.target.is_set()) {
    for (const std::optional<Scheme> scheme : target_schemes(recipe)) {
      if (scheme) {
        schemes.push_back(*scheme);
      }
    }
  }
  for (const auto& [name, scheme] : recipe.chosen) {
    if (scheme && std::ranges::find(schemes, *scheme) == schemes.end()) {
      schemes.push_back(*scheme);
    }
  }
  return schemes;
}

void check_target(const Recipe& recipe) {
  const SizeTarget& target = recipe.target;
  if (!target.is_set()) {
    if (!target.schemes.empty()) {
      fail(
          "the candidates of a target are given, but no target: add --target-bits or "
          "--target-size");
    }
    return;
  }
  if (target.bits && target.bytes) {
    fail("target_bits and target_size are both given; choose one");
  }
  if ((target.bits && !(*target.bits > 0)) || target.bytes == 0) {
    fail("a target must be more than 0");
  }
  if (recipe.layout != Layout::kQuark && recipe.layout != Layout::kCompressedTensors &&
      recipe.layout != Layout::kFp8) {
    fail(
        fmt::format("layout \"{}\" has one form for all tensors, so none can be chosen for a "
                    "target; quark, compressed-tensors and fp8 tell tensors apart",
                    layout_name(recipe.layout)));
  }
  const std::vector<std::optional<Scheme>> schemes = target_schemes(recipe);
  if (std::ranges::find(schemes, std::optional(recipe.scheme)) == schemes.end()) {
    fail(
        fmt::format("scheme \"{}\" is not among the candidates of the target; leave it out, or add "
                    "it to them",
                    scheme_name(recipe.scheme)));
  }
  for (auto scheme = schemes.begin(); scheme != schemes.end(); ++scheme) {
    if (std::find(schemes.begin(), scheme, *scheme) != scheme) {
      fail(fmt::format("candidate {} is given twice", choice_name(*scheme)));
    }
    if (*scheme && (is_floating_point(**scheme) || *scheme == Scheme::kSource)) {
      fail(
          fmt::format("{} is no candidate of a target; to leave tensors as they are, write "
                      "\"keep\" in place of a scheme",
                      scheme_name(**scheme)));
    }
    if (*scheme) {
      with_context("candidates of the target", [&] { check_layout(**scheme, recipe.layout); });
    }
  }
}

void check_exponents(std::string_view key, const std::vector<double>& exponents) {
  if (exponents.empty()) {
    fail(fmt::format("{}: at least one is wanted; scaling \"none\" switches the search off", key));
  }
  for (const double exponent : exponents) {
    if (!(exponent >= 0 && exponent <= 1)) {
      fail(fmt::format("{}: {} is outside 0 to 1", key, exponent));
    }
  }
}

void check_qwix(const Recipe& recipe) {
  if (recipe.scheme == Scheme::kSource && recipe.scaling != Scaling::kNone) {
    fail(
        "scheme \"source\" carries codes over as they are, so nothing can be scaled: use convert, "
        "or "
        "scaling \"none\"; --scheme quantizes anew");
  }
  if (recipe.layout != Layout::kQwix &&
      (!recipe.jax_model.empty() || recipe.scale_type != ScaleType::kSource)) {
    fail(fmt::format(R"(jax_model and scale_type belong to layout "qwix", and the layout is "{}")",
                     layout_name(recipe.layout)));
  }
}

// What the script does is fixed; any setting that would ask for something else is refused.
void check_seed(const Recipe& recipe) {
  const Recipe fixed;
  if (recipe.scheme != fixed.scheme && !is_floating_point(recipe.scheme)) {
    fail(fmt::format("compat \"seed\" quantizes to mxfp4, not {}", scheme_name(recipe.scheme)));
  }
  if (recipe.layout == Layout::kCompressedTensors) {
    fail("compat \"seed\" writes layout quark");
  }
  const auto refuse = [](std::string_view option, const std::string& value) {
    fail(fmt::format("compat \"seed\" fixes {}, so {} can't be given", option, value));
  };
  if (recipe.scaling != fixed.scaling) {
    refuse("scaling", std::string(scaling_name(recipe.scaling)));
  }
  if (recipe.alphas != fixed.alphas) {
    refuse("alphas", fmt::format("{}", fmt::join(recipe.alphas, ",")));
  }
  if (recipe.betas != fixed.betas) {
    refuse("betas", fmt::format("{}", fmt::join(recipe.betas, ",")));
  }
  if (recipe.objective != Objective::kW4A16) {
    refuse("objective", std::string(objective_name(recipe.objective)));
  }
  if (recipe.fold_scales != fixed.fold_scales) {
    refuse("fold_scales", std::string(fold_scales_name(recipe.fold_scales)));
  }
  if (recipe.rounding != fixed.rounding) {
    refuse("rounding", std::string(rounding_name(recipe.rounding)));
  }
  if (recipe.kv_cache != fixed.kv_cache) {
    refuse("kv_cache", std::string(kv_cache_name(recipe.kv_cache)));
  }
  if (!recipe.schemes.empty()) {
    refuse("schemes", recipe.schemes.front().pattern);
  }
  if (recipe.target.is_set() || !recipe.chosen.empty()) {
    fail("compat \"seed\" has one scheme, so none can be chosen for a target");
  }
  if (!recipe.keep.empty()) {
    refuse("keep", fmt::format("{}", fmt::join(recipe.keep, ", ")));
  }
}

}  // namespace

bool awaits_choice(const Recipe& recipe) {
  return recipe.target.is_set() && recipe.chosen.empty();
}

std::vector<std::optional<Scheme>> target_schemes(const Recipe& recipe) {
  if (!recipe.target.schemes.empty()) {
    return recipe.target.schemes;
  }
  std::vector<std::optional<Scheme>> wider;
  if (recipe.layout == Layout::kQuark) {
    wider = {Scheme::kMxfp6E2m3, Scheme::kFp8Channel};
  } else if (recipe.layout == Layout::kCompressedTensors) {
    wider = {Scheme::kFp8Channel};
  }
  std::vector<std::optional<Scheme>> schemes = {recipe.scheme};
  std::ranges::copy_if(wider, std::back_inserter(schemes), [&](std::optional<Scheme> scheme) {
    return scheme != recipe.scheme;
  });
  schemes.emplace_back(std::nullopt);
  return schemes;
}

void take_first_candidate(Recipe& recipe) {
  for (const std::optional<Scheme> scheme : recipe.target.schemes) {
    if (scheme) {
      recipe.scheme = *scheme;
      return;
    }
  }
}

Recipe default_recipe(Scheme scheme, Layout layout) {
  Recipe recipe;
  recipe.scheme = scheme;
  recipe.layout = layout;
  if (scheme == Scheme::kMxfp4) {
    recipe.scaling = Scaling::kBlockGrid;
    recipe.scale_rule = ScaleRule::kMse;
    // Layout quark says that servers round activations too.
    recipe.objective = layout == Layout::kQuark ? Objective::kW4A4 : Objective::kW4A16;
  }
  return recipe;
}

std::vector<ScaleExponents> tried_exponents(const Recipe& recipe) {
  std::vector<ScaleExponents> tried;
  if (recipe.scaling == Scaling::kBalance) {
    return {{0, 0}, {0.5, 0.5}};
  }
  const std::vector<double> quarters{0, 0.25, 0.5, 0.75, 1};
  const bool by_blocks = recipe.scaling == Scaling::kBlockGrid;
  for (const double alpha : by_blocks ? quarters : recipe.alphas) {
    for (const double beta : by_blocks ? quarters : recipe.betas) {
      tried.push_back({alpha, beta});
    }
  }
  if (std::ranges::find(tried, ScaleExponents{}) == tried.end()) {
    tried.insert(tried.begin(), ScaleExponents{});
  }
  return tried;
}

bool divides_by_shares(const Recipe& recipe) {
  return recipe.scaling == Scaling::kBlockGrid && recipe.objective == Objective::kW4A4 &&
         recipe.rounding == Rounding::kNearest;
}

Scheme searched_scheme(Scheme scheme) {
  return is_floating_point(scheme) ? Scheme::kMxfp4 : scheme;
}

bool takes_input_scales(const Recipe& recipe) {
  return recipe.layout != Layout::kQwix &&  // which has weights only
         std::ranges::any_of(schemes_of(recipe), may_have_input_scale);
}

void check_recipe(const Recipe& recipe) {
  check_layout(recipe.scheme, recipe.layout);
  for (const SchemeRule& rule : recipe.schemes) {
    if (!rule.scheme) {
      continue;
    }
    if (is_floating_point(*rule.scheme) || is_floating_point(recipe.scheme)) {
      fail(
          fmt::format("scheme for {}: {} and {} can't be mixed; to leave tensors as they are, "
                      "write \"keep\" in place of a scheme",
                      rule.pattern,
                      scheme_name(recipe.scheme),
                      scheme_name(*rule.scheme)));
    }
    with_context(fmt::format("scheme for {}", rule.pattern),
                 [&] { check_layout(*rule.scheme, recipe.layout); });
  }
  check_target(recipe);
  for (const auto& [name, scheme] : recipe.chosen) {
    if (scheme && (is_floating_point(*scheme) || is_floating_point(recipe.scheme))) {
      fail(fmt::format("chosen for {}: {} and {} can't be mixed",
                       name,
                       scheme_name(recipe.scheme),
                       scheme_name(*scheme)));
    }
    if (scheme) {
      with_context(fmt::format("chosen for {}", name),
                   [&recipe, chosen = *scheme] { check_layout(chosen, recipe.layout); });
    }
  }
  check_exponents("alphas", recipe.alphas);
  check_exponents("betas", recipe.betas);
  if (recipe.input_scales == InputScales::kStatic && !takes_input_scales(recipe)) {
    fail(fmt::format(
        "scheme \"{}\" in layout \"{}\" stores no scales of activations, so input_scales "
        "can't be \"static\"",
        scheme_name(recipe.scheme),
        layout_name(recipe.layout)));
  }
  if (recipe.kv_cache != KvCache::kNone && recipe.layout != Layout::kCompressedTensors &&
      recipe.layout != Layout::kQuark) {
    fail(
        fmt::format("layout \"{}\" has no place for kv_cache \"{}\"; quark and "
                    "compressed-tensors have",
                    layout_name(recipe.layout),
                    kv_cache_name(recipe.kv_cache)));
  }
  const Scheme searched = searched_scheme(recipe.scheme);
  if (recipe.objective == Objective::kW4A4 && searched != Scheme::kMxfp4) {
    fail(
        fmt::format("objective \"w4a4\" is of activations in MXFP4; with scheme \"{}\" choose "
                    "\"w4a16\"",
                    scheme_name(recipe.scheme)));
  }
  if (recipe.scaling == Scaling::kBlockGrid &&
      std::ranges::none_of(schemes_of(recipe),
                           [](Scheme scheme) { return is_mx(searched_scheme(scheme)); })) {
    fail(
        fmt::format("scaling \"block-grid\" goes by the blocks of MX schemes; with scheme "
                    "\"{}\" choose \"awq-grid\"",
                    scheme_name(recipe.scheme)));
  }
  if (recipe.rounding == Rounding::kGptq &&
      std::ranges::none_of(schemes_of(recipe), takes_feedback)) {
    fail(
        fmt::format("rounding \"gptq\" is of MX, NVFP4 and integer schemes; with scheme \"{}\" "
                    "choose \"nearest\"",
                    scheme_name(recipe.scheme)));
  }
  check_qwix(recipe);
  if (recipe.compat == Compat::kSeed) {
    check_seed(recipe);
  }
}

}  // namespace quantmill
