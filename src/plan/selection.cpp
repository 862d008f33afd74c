#include "plan/selection.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/pattern.h"
#include "plan/module_patterns.h"

namespace quantmill {
namespace {

bool matches(const ModelTensor& tensor, const std::string& pattern) {
  return matches_pattern(pattern, tensor.name) || matches_pattern(pattern, tensor.module());
}

void check_matches(const ResolvedArchitecture& architecture,
                   std::string_view option,
                   const std::string& pattern) {
  if (std::ranges::none_of(architecture.tensors,
                           [&](const ModelTensor& tensor) { return matches(tensor, pattern); })) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} {} matches no tensor and no module of the checkpoint; patterns are matched "
                    "against whole names, e.g. '*.down_proj' or 'layers.0.*'",
                    option,
                    pattern));
  }
}

void check_recipe_names(const ResolvedArchitecture& architecture, const Recipe& recipe) {
  for (const std::string& pattern : recipe.keep) {
    check_matches(architecture, "--keep", pattern);
  }
  for (const SchemeRule& rule : recipe.schemes) {
    check_matches(architecture, "--scheme-for", rule.pattern);
  }
  std::size_t known = 0;
  for (const ModelTensor& tensor : architecture.tensors) {
    known += recipe.chosen.count(tensor.name);
  }
  if (known != recipe.chosen.size()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the recipe's \"chosen\" names {} tensors, of which the model has only "
                            "{}; it is of another model",
                            recipe.chosen.size(),
                            known));
  }
  std::set<std::string> parts;
  for (const ModelTensor& tensor : architecture.tensors) {
    if (!tensor.part.empty()) {
      parts.insert(tensor.part.str());
    }
  }
  for (const std::string& part : recipe.include) {
    if (!parts.contains(part)) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("--include {}: the model has no such part; {}",
                              part,
                              parts.empty() ? "it has none that must be asked for"
                                            : fmt::format("it has {}", fmt::join(parts, ", "))));
    }
  }
}

SchemeChoice choose(const ModelTensor& tensor, const Recipe& recipe) {
  const bool has_form = recipe.layout != Layout::kGptOss || (tensor.slice && tensor.transposed);
  if (!tensor.quantizable || !is_included(tensor.part.str(), recipe) || !has_form) {
    return {};
  }
  for (const std::string& pattern : recipe.keep) {
    if (matches(tensor, pattern)) {
      return {std::nullopt, pattern};
    }
  }
  for (const SchemeRule& rule : recipe.schemes) {
    if (matches(tensor, rule.pattern)) {
      return {rule.scheme, rule.pattern};
    }
  }
  if (const auto chosen = recipe.chosen.find(tensor.name); chosen != recipe.chosen.end()) {
    return {chosen->second, "", true};
  }
  return {recipe.scheme, ""};
}

std::string_view name_of(const SchemeChoice& choice) {
  return choice.scheme ? scheme_name(*choice.scheme) : "unquantized";
}

// Two tensors that must be treated alike.
struct Bond {
  std::size_t first = 0;
  std::size_t second = 0;
  bool are_slices = false;  // of one stored tensor; or else servers fuse them
};

std::vector<Bond> find_bonds(const ResolvedArchitecture& architecture) {
  std::vector<Bond> bonds;
  std::map<std::string, std::size_t> first_of_group;
  for (std::size_t index = 0; index < architecture.tensors.size(); ++index) {
    const ModelTensor& tensor = architecture.tensors[index];
    if (!tensor.quantizable) {
      continue;
    }
    if (tensor.slice.value_or(0) > 0) {
      bonds.push_back({index - 1, index, true});
    }
    if (!tensor.fused_group.empty()) {
      const auto [first, is_new] = first_of_group.try_emplace(tensor.fused_group, index);
      if (!is_new) {
        bonds.push_back({first->second, index, false});
      }
    }
  }
  return bonds;
}

void check_bond(const ResolvedArchitecture& architecture,
                const std::vector<SchemeChoice>& choices,
                const Bond& bond) {
  if (choices[bond.first].scheme == choices[bond.second].scheme) {
    return;
  }
  const ModelTensor& tensor = architecture.tensors[bond.second];
  throw Error(ErrorCode::kUsage,
              fmt::format("{} would be {} and {} {}, but {}; choose patterns of --keep and "
                          "--scheme-for that match both or neither",
                          architecture.tensors[bond.first].name,
                          name_of(choices[bond.first]),
                          tensor.name,
                          name_of(choices[bond.second]),
                          bond.are_slices ? "both are slices of one stored tensor"
                                          : fmt::format("servers fuse both into {}, which has one "
                                                        "format",
                                                        tensor.fused_group)));
}

// The root of a tensor's set in a forest of parents, of which it flattens the way.
std::size_t root_of(std::vector<std::size_t>& parents, std::size_t index) {
  while (parents[index] != index) {
    parents[index] = parents[parents[index]];
    index = parents[index];
  }
  return index;
}

}  // namespace

bool is_included(const std::string& part, const Recipe& recipe) {
  return part.empty() || std::ranges::find(recipe.include, part) != recipe.include.end();
}

std::vector<std::vector<std::size_t>> scheme_groups(const ResolvedArchitecture& architecture) {
  std::vector<std::size_t> parents(architecture.tensors.size());
  std::iota(parents.begin(), parents.end(), std::size_t{0});
  const auto join = [&](std::size_t a, std::size_t b) {
    const auto [first, second] = std::minmax({root_of(parents, a), root_of(parents, b)});
    parents[second] = first;
  };
  for (const Bond& bond : find_bonds(architecture)) {
    join(bond.first, bond.second);
  }
  const bool has_own_numbers = architecture.server_layer_offset.value_or(1) != 0;
  std::map<std::string, std::size_t> first_of_name;
  std::map<std::size_t, std::vector<std::size_t>> sets;  // by root: their first tensor
  for (std::size_t index = 0; index < architecture.tensors.size(); ++index) {
    if (has_own_numbers && architecture.tensors[index].quantizable) {
      const std::string name = without_numbers(architecture.tensors[index].module());
      join(first_of_name.try_emplace(name, index).first->second, index);
    }
  }
  for (std::size_t index = 0; index < architecture.tensors.size(); ++index) {
    if (architecture.tensors[index].quantizable) {
      sets[root_of(parents, index)].push_back(index);
    }
  }
  std::vector<std::vector<std::size_t>> groups;
  groups.reserve(sets.size());
  for (auto& [root, tensors] : sets) {
    groups.push_back(std::move(tensors));
  }
  return groups;
}

std::vector<SchemeChoice> choose_schemes(const ResolvedArchitecture& architecture,
                                         const Recipe& recipe) {
  check_recipe_names(architecture, recipe);
  std::vector<SchemeChoice> choices;
  for (const ModelTensor& tensor : architecture.tensors) {
    choices.push_back(choose(tensor, recipe));
  }
  for (const Bond& bond : find_bonds(architecture)) {
    check_bond(architecture, choices, bond);
  }
  if (std::ranges::none_of(choices, &SchemeChoice::is_quantized)) {
    if (recipe.layout == Layout::kGptOss) {
      throw Error(ErrorCode::kUsage,
                  "layout \"gpt-oss\" holds experts that are stored as one tensor [experts, in, "
                  "out], and none is left to quantize; use another --layout");
    }
    throw Error(
        ErrorCode::kUsage,
        "nothing is left to quantize: every tensor that could be is kept; use fewer --keep");
  }
  return choices;
}

}  // namespace quantmill
