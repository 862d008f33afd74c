#pragma once

// A recipe as a value of the JSON library, for what prints it among other things. Json:
// nlohmann::ordered_json, which headers do not name.

#include <iterator>
#include <utility>

#include "plan/recipe.h"
#include "plan/recipe_json.h"

namespace quantmill {

// What Json::parse(to_json(recipe)) gives. That looks up each name of what is chosen for a target
// among all before it: seconds for a model of 70,000 tensors.
template <typename Json>
Json recipe_value(Recipe recipe) {
  typename Json::object_t chosen;
  for (const auto& [name, scheme] : recipe.chosen) {
    chosen.emplace_back(name, choice_name(scheme));
  }
  if (chosen.empty()) {
    return Json::parse(to_json(recipe));
  }
  recipe.chosen.erase(std::next(recipe.chosen.begin()), recipe.chosen.end());
  Json value = Json::parse(to_json(recipe));
  value["chosen"] = std::move(chosen);  // where the one stood
  return value;
}

}  // namespace quantmill
