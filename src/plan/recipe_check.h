#pragma once

// Which settings of a recipe go together.

#include "plan/recipe.h"

namespace quantmill {

// What can't go together (kUsage): a layout that does not take every scheme, rules where nothing is
// quantized, input_scales static with no scheme that stores them, a kv_cache in a layout that has
// no place for it, compat seed with anything but mxfp4 in layout quark or what it folds in layout
// plain, alphas empty or outside 0..1, compat seed with anything it fixes (scale_rule other than
// floor is overridden aloud by the caller, not here).
void check_recipe(const Recipe& recipe);

}  // namespace quantmill
