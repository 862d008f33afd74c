#include "plan/selection.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/pattern.h"

namespace quantmill {
namespace {

bool is_kept(const ModelTensor& tensor, const std::vector<std::string>& patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return matches_pattern(pattern, tensor.name) || matches_pattern(pattern, tensor.module);
  });
}

void check_recipe_names(const ResolvedArchitecture& architecture, const Recipe& recipe) {
  for (const std::string& pattern : recipe.keep) {
    if (std::ranges::none_of(architecture.tensors, [&](const ModelTensor& tensor) {
          return is_kept(tensor, {pattern});
        })) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format(
              "--keep {} matches no tensor and no module of the checkpoint; patterns are matched "
              "against whole names, e.g. '*.down_proj' or 'layers.0.*'",
              pattern));
    }
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

// Two tensors that must be treated alike, and are not.
[[noreturn]] void refuse_mixture(const ResolvedArchitecture& architecture,
                                 const std::vector<bool>& quantized,
                                 std::size_t a,
                                 std::size_t b,
                                 const std::string& reason) {
  throw Error(ErrorCode::kUsage,
              fmt::format("--keep leaves {} unquantized but not {}: {}; keep all of its parts or "
                          "none",
                          architecture.tensors[quantized[a] ? b : a].name,
                          architecture.tensors[quantized[a] ? a : b].name,
                          reason));
}

}  // namespace

std::vector<bool> choose_quantized(const ResolvedArchitecture& architecture, const Recipe& recipe) {
  check_recipe_names(architecture, recipe);
  std::vector<bool> quantized;
  std::map<std::string, std::size_t> first_of_group;
  for (std::size_t index = 0; index < architecture.tensors.size(); ++index) {
    const ModelTensor& tensor = architecture.tensors[index];
    const bool is_wanted = tensor.part.empty() ||
                           std::ranges::find(recipe.include, tensor.part) != recipe.include.end();
    const bool has_form = recipe.layout != Layout::kGptOss || (tensor.slice && tensor.transposed);
    quantized.push_back(tensor.quantizable && is_wanted && has_form &&
                        !is_kept(tensor, recipe.keep));
    if (!tensor.quantizable) {
      continue;
    }
    if (tensor.slice.value_or(0) > 0 && quantized[index - 1] != quantized[index]) {
      refuse_mixture(
          architecture, quantized, index - 1, index, "both are slices of one stored tensor");
    }
    if (tensor.fused_group.empty()) {
      continue;
    }
    const auto [first, is_new] = first_of_group.try_emplace(tensor.fused_group, index);
    if (!is_new && quantized[first->second] != quantized[index]) {
      refuse_mixture(
          architecture,
          quantized,
          first->second,
          index,
          fmt::format("servers fuse both into {}, which has one format", tensor.fused_group));
    }
  }
  if (std::ranges::none_of(quantized, [](bool chosen) { return chosen; })) {
    if (recipe.layout == Layout::kGptOss) {
      throw Error(ErrorCode::kUsage,
                  "layout \"gpt-oss\" holds experts that are stored as one tensor [experts, in, "
                  "out], and none is left to quantize; use another --layout");
    }
    throw Error(
        ErrorCode::kUsage,
        "nothing is left to quantize: every tensor that could be is kept; use fewer --keep");
  }
  return quantized;
}

}  // namespace quantmill
