#pragma once

// Recipes as files and options spell them.

#include <string>

#include "plan/recipe.h"

namespace quantmill {

// Applies the JSON text of a recipe file to `recipe`. Keys: scheme, schemes (list of {"match":
// pattern, "scheme": name or "keep"}), layout, scaling, alphas, betas, objective, scale_rule,
// fold_scales, input_scales, kv_cache, min_tokens, keep, include, compat, architecture,
// jax_model, scale_type, allow_unknown, untie, max_shard_size (number of bytes or text like "4G"),
// target_bits, target_size (as max_shard_size), target_schemes (list of names), chosen (object of
// tensor names with schemes). A scheme without a layout takes its own default layout; without a
// scheme, the first of target_schemes is it. Errors, kUsage: not JSON, unknown key or
// value (with those that exist).
void apply_recipe_json(const std::string& json, Recipe& recipe);

// "PATTERN=SCHEME", as --scheme-for has it. kUsage.
SchemeRule parse_scheme_rule(const std::string& text);

// The effective recipe as JSON text, keys in a fixed order: recorded in manifests, reproduces the
// job.
std::string to_json(const Recipe& recipe);

}  // namespace quantmill
