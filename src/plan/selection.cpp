#include "plan/selection.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/pattern.h"

namespace quantmill {
namespace {

bool matches(const ModelTensor& tensor, const std::string& pattern) {
  return matches_pattern(pattern, tensor.name) || matches_pattern(pattern, tensor.module);
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
  std::set<std::string> parts;
  for (const ModelTensor& tensor : architecture.tensors) {
    if (!tensor.part.empty()) {
      parts.insert(tensor.part);
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
  if (!tensor.quantizable || !is_included(tensor.part, recipe) || !has_form) {
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
  return {recipe.scheme, ""};
}

std::string_view name_of(const SchemeChoice& choice) {
  return choice.scheme ? scheme_name(*choice.scheme) : "unquantized";
}

// Two tensors that must be treated alike, and are not.
void check_alike(const ResolvedArchitecture& architecture,
                 const std::vector<SchemeChoice>& choices,
                 std::size_t a,
                 std::size_t b,
                 const std::string& reason) {
  if (choices[a].scheme == choices[b].scheme) {
    return;
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("{} would be {} and {} {}, but {}; choose patterns of --keep and "
                          "--scheme-for that match both or neither",
                          architecture.tensors[a].name,
                          name_of(choices[a]),
                          architecture.tensors[b].name,
                          name_of(choices[b]),
                          reason));
}

}  // namespace

bool is_included(const std::string& part, const Recipe& recipe) {
  return part.empty() || std::ranges::find(recipe.include, part) != recipe.include.end();
}

std::vector<SchemeChoice> choose_schemes(const ResolvedArchitecture& architecture,
                                         const Recipe& recipe) {
  check_recipe_names(architecture, recipe);
  std::vector<SchemeChoice> choices;
  std::map<std::string, std::size_t> first_of_group;
  for (std::size_t index = 0; index < architecture.tensors.size(); ++index) {
    const ModelTensor& tensor = architecture.tensors[index];
    choices.push_back(choose(tensor, recipe));
    if (!tensor.quantizable) {
      continue;
    }
    if (tensor.slice.value_or(0) > 0) {
      check_alike(architecture, choices, index - 1, index, "both are slices of one stored tensor");
    }
    if (tensor.fused_group.empty()) {
      continue;
    }
    const auto [first, is_new] = first_of_group.try_emplace(tensor.fused_group, index);
    check_alike(architecture,
                choices,
                first->second,
                index,
                fmt::format("servers fuse both into {}, which has one format", tensor.fused_group));
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
