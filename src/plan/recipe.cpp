#include "plan/recipe.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace quantmill {

namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kUsage, message);
}

// The values of an option with their names, in the order in which messages list them.
template <typename Value, std::size_t kCount>
using Names = std::array<std::pair<Value, std::string_view>, kCount>;

constexpr Names<ScaleType, 2> kScaleTypes{
    {{ScaleType::kSource, "source"}, {ScaleType::kF32, "f32"}}};
constexpr Names<Scaling, 4> kScalings{{{Scaling::kNone, "none"},
                                       {Scaling::kAwqGrid, "awq-grid"},
                                       {Scaling::kBalance, "balance"},
                                       {Scaling::kBlockGrid, "block-grid"}}};
constexpr Names<Objective, 2> kObjectives{
    {{Objective::kW4A16, "w4a16"}, {Objective::kW4A4, "w4a4"}}};
constexpr Names<ScaleRule, 5> kScaleRules{{{ScaleRule::kEven, "even"},
                                           {ScaleRule::kMse, "mse"},
                                           {ScaleRule::kFloor, "floor"},
                                           {ScaleRule::kRceil, "rceil"},
                                           {ScaleRule::kCeil, "ceil"}}};
constexpr Names<FoldScales, 3> kFoldScales{
    {{FoldScales::kExact, "exact"}, {FoldScales::kPow2, "pow2"}, {FoldScales::kOff, "off"}}};
constexpr Names<InputScales, 3> kInputScales{
    {{InputScales::kAuto, "auto"}, {InputScales::kStatic, "static"}, {InputScales::kNone, "none"}}};
constexpr Names<KvCache, 2> kKvCaches{{{KvCache::kNone, "none"}, {KvCache::kFp8, "fp8"}}};
constexpr Names<Compat, 2> kCompats{{{Compat::kNone, "none"}, {Compat::kSeed, "seed"}}};

template <typename Value, std::size_t kCount>
std::string_view name_of(const Names<Value, kCount>& names, Value value) {
  for (const auto& [candidate, name] : names) {
    if (candidate == value) {
      return name;
    }
  }
  throw Error(ErrorCode::kInternal, "internal fault: an option value without a name");
}

template <typename Value, std::size_t kCount>
Value value_of(const Names<Value, kCount>& names,
               std::string_view option,
               std::string_view wanted) {
  std::vector<std::string_view> known;
  for (const auto& [value, name] : names) {
    if (name == wanted) {
      return value;
    }
    known.push_back(name);
  }
  fail(fmt::format(
      "{}: there is no \"{}\"; choose one of {}", option, wanted, fmt::join(known, ", ")));
}

// That the recipe may give to some tensor.
std::vector<Scheme> schemes_of(const Recipe& recipe) {
  std::vector<Scheme> schemes = {recipe.scheme};
  for (const SchemeRule& rule : recipe.schemes) {
    if (rule.scheme) {
      schemes.push_back(*rule.scheme);
    }
  }
  return schemes;
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
    fail(fmt::format("jax_model and scale_type belong to layout \"qwix\", and the layout is \"{}\"",
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
  if (recipe.kv_cache != fixed.kv_cache) {
    refuse("kv_cache", std::string(kv_cache_name(recipe.kv_cache)));
  }
  if (!recipe.schemes.empty()) {
    refuse("schemes", recipe.schemes.front().pattern);
  }
  if (!recipe.keep.empty()) {
    refuse("keep", fmt::format("{}", fmt::join(recipe.keep, ", ")));
  }
}

}  // namespace

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

Scheme searched_scheme(Scheme scheme) {
  return is_floating_point(scheme) ? Scheme::kMxfp4 : scheme;
}

bool takes_input_scales(const Recipe& recipe) {
  return std::ranges::any_of(schemes_of(recipe), may_have_input_scale);
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
  check_exponents("alphas", recipe.alphas);
  check_exponents("betas", recipe.betas);
  if (recipe.input_scales == InputScales::kStatic && !takes_input_scales(recipe)) {
    fail(
        fmt::format("scheme \"{}\" stores no scales of activations, so input_scales can't be "
                    "\"static\"",
                    scheme_name(recipe.scheme)));
  }
  if (recipe.kv_cache != KvCache::kNone && recipe.layout != Layout::kCompressedTensors &&
      recipe.layout != Layout::kQuark) {
    fail(
        fmt::format("layout \"{}\" has no place for kv_cache \"{}\"; quark and "
                    "compressed-tensors have",
                    layout_name(recipe.layout),
                    kv_cache_name(recipe.kv_cache)));
  }
  for (const Scheme scheme : schemes_of(recipe)) {
    if (recipe.objective == Objective::kW4A4 && searched_scheme(scheme) != Scheme::kMxfp4) {
      fail(
          fmt::format("objective \"w4a4\" is of activations in MXFP4; with scheme \"{}\" choose "
                      "\"w4a16\"",
                      scheme_name(scheme)));
    }
    if (recipe.scaling == Scaling::kBlockGrid && !is_mx(searched_scheme(scheme))) {
      fail(
          fmt::format("scaling \"block-grid\" goes by the blocks of MX schemes; with scheme "
                      "\"{}\" choose \"awq-grid\"",
                      scheme_name(scheme)));
    }
  }
  check_qwix(recipe);
  if (recipe.compat == Compat::kSeed) {
    check_seed(recipe);
  }
}

std::string_view scaling_name(Scaling scaling) {
  return name_of(kScalings, scaling);
}

std::string_view objective_name(Objective objective) {
  return name_of(kObjectives, objective);
}

std::string_view scale_rule_name(ScaleRule rule) {
  return name_of(kScaleRules, rule);
}

std::string_view fold_scales_name(FoldScales mode) {
  return name_of(kFoldScales, mode);
}

std::string_view input_scales_name(InputScales scales) {
  return name_of(kInputScales, scales);
}

std::string_view kv_cache_name(KvCache kv_cache) {
  return name_of(kKvCaches, kv_cache);
}

std::string_view compat_name(Compat compat) {
  return name_of(kCompats, compat);
}

std::string_view scale_type_name(ScaleType type) {
  return name_of(kScaleTypes, type);
}

ScaleType scale_type_from_name(std::string_view name) {
  return value_of(kScaleTypes, "scale_type", name);
}

Scaling scaling_from_name(std::string_view name) {
  return value_of(kScalings, "scaling", name);
}

Objective objective_from_name(std::string_view name) {
  return value_of(kObjectives, "objective", name);
}

ScaleRule scale_rule_from_name(std::string_view name) {
  return value_of(kScaleRules, "scale_rule", name);
}

FoldScales fold_scales_from_name(std::string_view name) {
  return value_of(kFoldScales, "fold_scales", name);
}

InputScales input_scales_from_name(std::string_view name) {
  return value_of(kInputScales, "input_scales", name);
}

KvCache kv_cache_from_name(std::string_view name) {
  return value_of(kKvCaches, "kv_cache", name);
}

Compat compat_from_name(std::string_view name) {
  return value_of(kCompats, "compat", name);
}

}  // namespace quantmill
