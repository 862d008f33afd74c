#include "plan/recipe_check.h"

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace quantmill {
namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kUsage, message);
}

void check_alphas(const std::vector<double>& alphas) {
  if (alphas.empty()) {
    fail("alphas: at least one is wanted; scaling \"none\" switches the search off");
  }
  for (const double alpha : alphas) {
    if (!(alpha >= 0 && alpha <= 1)) {
      fail(fmt::format("alphas: {} is outside 0 to 1", alpha));
    }
  }
}

// What the script does is fixed; any setting that would ask for something else is refused.
void check_seed(const Recipe& recipe) {
  const Recipe fixed;
  if (recipe.scheme != fixed.scheme && !is_floating_point(recipe.scheme)) {
    fail(fmt::format("compat \"seed\" quantizes to mxfp4, not {}", scheme_name(recipe.scheme)));
  }
  if (recipe.layout == Layout::kCompressedTensors || recipe.layout == Layout::kGptOss) {
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
  check_alphas(recipe.alphas);
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
  if (recipe.compat == Compat::kSeed) {
    check_seed(recipe);
  }
}

}  // namespace quantmill
