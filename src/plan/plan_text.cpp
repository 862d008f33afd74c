#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/byte_size.h"
#include "base/version.h"
#include "plan/plan.h"
#include "plan/qwix/text.h"
#include "plan/recipe_value.h"
#include "plan/target.h"
#include "plan/tensor_parallel.h"

namespace quantmill {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kColumnsOfNames = 44;

std::string_view action_name(Action action) {
  switch (action) {
    case Action::kCopy:
      return "copy";
    case Action::kFoldNorm:
      return "fold into norm";
    case Action::kFoldLinear:
      return "scale or convert";
    case Action::kQuantize:
      return "quantize";
    case Action::kKvScale:
      return "make from statistics";
    case Action::kRearrange:
      return "copy";
  }
  return "";
}

// Share of the source's elements that are quantized.
double coverage(const Plan& plan) {
  const ParameterCounts count = count_parameters(plan);
  return count.all == 0 ? 0 : static_cast<double>(count.quantized) / static_cast<double>(count.all);
}

std::string shorten(const std::vector<std::string>& names) {
  std::string text = names.empty() ? "(nothing)" : names.front();
  return names.size() > 1 ? text + fmt::format(" and {} more", names.size() - 1) : text;
}

std::vector<std::string> reader_names(const Plan& plan, const FoldGroup& group) {
  std::vector<std::string> names;
  for (const std::size_t activation : group.activations) {
    for (const std::size_t reader : plan.architecture.activations[activation].readers) {
      names.push_back(plan.architecture.tensors[reader].name);
    }
  }
  return names;
}

std::vector<std::string> producer_names(const Plan& plan, const FoldGroup& group) {
  std::vector<std::string> names;
  for (const std::size_t activation : group.activations) {
    if (const auto& producer = plan.architecture.activations[activation].producer) {
      names.push_back(plan.architecture.tensors[producer->tensor].name);
    }
  }
  return names;
}

// "layers.3.experts.17.down" -> "layers.3.experts.#.down"; empty without a second number.
std::string without_second_number(const std::string& name) {
  const std::string digits = "0123456789";
  const std::size_t first = name.find_first_of(digits);
  const std::size_t gap = name.find_first_not_of(digits, first);
  const std::size_t second = gap == std::string::npos ? gap : name.find_first_of(digits, gap);
  if (first == std::string::npos || second == std::string::npos) {
    return "";
  }
  const std::size_t end = std::min(name.find_first_not_of(digits, second), name.size());
  return name.substr(0, second) + "#" + name.substr(end);
}

// What a tensor's scheme was chosen by for a target, where that is known.
std::optional<double> target_error(const Plan& plan, std::size_t tensor) {
  return plan.target_errors.empty() ? std::nullopt : plan.target_errors[tensor];
}

// ", by *.down_proj": what chose a tensor's scheme, if the recipe's own did not.
std::string describe_choice(const Plan& plan, std::size_t tensor) {
  const SchemeChoice& choice = plan.choices[tensor];
  if (!choice.by_target) {
    return choice.pattern.empty() ? "" : fmt::format(", by {}", choice.pattern);
  }
  const std::optional<double> error = target_error(plan, tensor);
  return error ? fmt::format(", by target, error {:.3g}", *error) : ", by target";
}

// Groups of one layer that differ by another number: experts.
struct ExpertLayer {
  std::string name;  // of the groups, with "#" for the expert
  std::vector<std::uint64_t> tokens;
  std::size_t num_neutral = 0;
};

std::vector<ExpertLayer> expert_layers(const Plan& plan) {
  std::vector<ExpertLayer> layers;
  for (std::size_t index = 0; index < plan.groups.size(); ++index) {
    const FoldGroup& group = plan.architecture.fold_groups[index];
    const std::string name = without_second_number(group.name);
    if (name.empty() || !plan.groups[index].tokens) {
      continue;
    }
    if (layers.empty() || layers.back().name != name) {
      layers.push_back({name, {}, 0});
    }
    layers.back().tokens.push_back(*plan.groups[index].tokens);
    layers.back().num_neutral += plan.groups[index].searched ? 0U : 1U;
  }
  return layers;
}

std::string describe_experts(const Plan& plan) {
  std::string text;
  for (ExpertLayer& layer : expert_layers(plan)) {
    std::ranges::sort(layer.tokens);
    text += fmt::format("  {:<36} {:>5} experts, tokens {} to {}, median {}; {} not scaled\n",
                        layer.name,
                        layer.tokens.size(),
                        layer.tokens.front(),
                        layer.tokens.back(),
                        layer.tokens[layer.tokens.size() / 2],
                        layer.num_neutral);
  }
  return text.empty() ? text
                      : "tokens that reached experts while statistics were recorded\n" + text;
}

}  // namespace

std::string describe_plan(const Plan& plan, const Checkpoint& checkpoint) {
  std::string text = fmt::format("{}: architecture {}, {} tensors in {} files\n",
                                 checkpoint.folder().string(),
                                 plan.architecture.name,
                                 plan.tensors.size(),
                                 checkpoint.shards().size());
  text += fmt::format("{} -> {}, {:.1f} % of the parameters quantized\n",
                      format_size(plan.source_bytes),
                      format_size(plan.output_bytes),
                      100 * coverage(plan));
  text += describe_target(plan);
  const std::vector<std::uint64_t> degrees = tensor_parallel_degrees(plan);
  text += fmt::format("tensor-parallel ranks that can share it: {}\n",
                      degrees.empty() ? "none" : fmt::format("{}", fmt::join(degrees, ", ")));
  for (const auto& [name, bytes] : source_bytes_by_type(checkpoint, plan)) {
    text += fmt::format("  before  {:<8} {:>12}\n", name, format_size(bytes));
  }
  for (const auto& [name, bytes] : output_bytes_by_type(plan)) {
    text += fmt::format("  after   {:<8} {:>12}\n", name, format_size(bytes));
  }
  text += "fold groups: producers -> readers\n";
  for (std::size_t index = 0; index < plan.groups.size(); ++index) {
    const FoldGroup& group = plan.architecture.fold_groups[index];
    text += fmt::format("  {:<20} {:>6} channels  {} -> {}{}\n",
                        group.name,
                        group.num_channels,
                        shorten(producer_names(plan, group)),
                        shorten(reader_names(plan, group)),
                        plan.groups[index].searched
                            ? ""
                            : fmt::format("  [not scaled: {}]", plan.groups[index].reason));
  }
  text += describe_experts(plan);
  text += "tensors\n";
  for (const TensorWork& work : plan.tensors) {
    const ModelTensor& tensor = plan.architecture.tensors[work.tensor];
    const SourceWeight& source = plan.architecture.weights[tensor.stored];
    text += fmt::format("  {:<{}} {:<5} [{}] -> {} ({}{})\n",
                        tensor.slice && !work.is_quantized() ? tensor.name : work.name,
                        kColumnsOfNames,
                        source_type_name(source),
                        fmt::join(tensor.shape, ", "),
                        work.stored_name(),
                        action_name(work.action),
                        describe_choice(plan, work.tensor));
  }
  text += describe_parameters(plan);
  text += "files\n";
  for (const OutputShard& shard : plan.shards) {
    text += fmt::format(
        "  {:<{}} {:>12}\n", shard.file_name, kColumnsOfNames, format_size(shard.size_bytes()));
  }
  for (const std::string& notice : plan.notices) {
    text += fmt::format("note: {}\n", notice);
  }
  return text;
}

std::string plan_to_json(const Plan& plan) {
  Json json;
  json["program"] = fmt::format("quantmill {}", program_version());
  json["architecture"] = plan.architecture.name;
  json["recipe"] = recipe_value<Json>(plan.recipe);
  json["source_bytes"] = plan.source_bytes;
  json["output_bytes"] = plan.output_bytes;
  json["coverage"] = coverage(plan);
  json["target"] = Json::parse(target_to_json(plan));
  json["tensor_parallel"] = tensor_parallel_degrees(plan);
  json["fold_groups"] = Json::array();
  for (std::size_t index = 0; index < plan.groups.size(); ++index) {
    const FoldGroup& group = plan.architecture.fold_groups[index];
    json["fold_groups"].push_back(
        {{"name", group.name},
         {"channels", group.num_channels},
         {"producers", producer_names(plan, group)},
         {"readers", reader_names(plan, group)},
         {"tokens", plan.groups[index].tokens ? Json(*plan.groups[index].tokens) : Json(nullptr)},
         {"no_fold", group.no_fold_reason.empty() ? Json(nullptr) : Json(group.no_fold_reason)},
         {"not_scaled",
          plan.groups[index].searched ? Json(nullptr) : Json(plan.groups[index].reason)}});
  }
  json["tensors"] = Json::array();
  for (const TensorWork& work : plan.tensors) {
    const ModelTensor& tensor = plan.architecture.tensors[work.tensor];
    const SourceWeight& source = plan.architecture.weights[tensor.stored];
    const std::optional<double> error = target_error(plan, work.tensor);
    json["tensors"].push_back(
        {{"name", work.name},
         {"source", tensor.name},
         {"dtype", source_type_name(source)},
         {"shape", tensor.shape},
         {"stored_as", work.stored_name()},
         {"chosen_by",
          plan.choices[work.tensor].by_target ? std::string("target")
                                              : plan.choices[work.tensor].pattern},
         {"target_error", error ? Json(*error) : Json(nullptr)},
         {"action", action_name(work.action)},
         {"file", plan.shards[work.parts.front().shard].file_name},
         {"bytes", work.output_bytes()}});
  }
  if (!plan.parameters.empty()) {
    json["parameters"] = Json::parse(parameters_to_json(plan));
  }
  json["files"] = Json::array();
  for (const OutputShard& shard : plan.shards) {
    json["files"].push_back({{"name", shard.file_name}, {"bytes", shard.size_bytes()}});
  }
  json["notices"] = plan.notices;
  return json.dump(1) + "\n";
}

}  // namespace quantmill
