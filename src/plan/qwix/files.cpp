#include "plan/qwix/files.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/pattern.h"
#include "base/version.h"
#include "plan/qwix/jax_model.h"

namespace quantmill {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;
constexpr const char* kAnyNumber = "[^/]+";

// The module that owns a parameter, as Qwix spells it, number by number: "layers", "3", "mlp".
std::vector<std::string> module_steps(const std::string& parameter) {
  std::vector<std::string> steps;
  std::size_t begin = 0;
  for (std::size_t dot = parameter.find('.'); dot != std::string::npos;
       dot = parameter.find('.', begin)) {
    steps.push_back(parameter.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return steps;
}

// What a rule says beside where.
struct RuleSettings {
  std::string_view type;
  std::uint64_t tile = 0;  // 0: none
  bool asymmetric = false;

  bool operator==(const RuleSettings&) const = default;
};

// Modules that differ in their numbers only.
struct ModuleFamily {
  std::string pattern;                         // numbers as wildcards
  std::size_t num_numbers = 0;                 // in a path
  std::set<std::vector<std::string>> modules;  // all, as steps
  std::vector<std::pair<RuleSettings, std::vector<std::vector<std::string>>>> quantized;

  void add_quantized(const RuleSettings& settings, const std::vector<std::string>& module) {
    for (auto& [known, list] : quantized) {
      if (known == settings) {
        if (std::ranges::find(list, module) == list.end()) {
          list.push_back(module);
        }
        return;
      }
    }
    quantized.push_back({settings, {module}});
  }
};

std::vector<ModuleFamily> module_families(const std::vector<QwixParameter>& parameters) {
  std::vector<ModuleFamily> families;
  std::unordered_map<std::string, std::size_t> by_pattern;
  for (const QwixParameter& parameter : parameters) {
    const std::vector<std::string> module = module_steps(parameter.name);
    std::vector<std::string> wild = module;
    std::size_t numbers = 0;
    for (std::string& step : wild) {
      if (is_number(step)) {
        step = kAnyNumber;
        ++numbers;
      }
    }
    const std::string pattern = fmt::format("{}", fmt::join(wild, "/"));
    const auto [found, is_new] = by_pattern.try_emplace(pattern, families.size());
    if (is_new) {
      families.push_back({pattern, numbers, {}, {}});
    }
    ModuleFamily& family = families[found->second];
    family.modules.insert(module);
    if (parameter.is_quantized() && !parameter.opaque) {
      family.add_quantized(
          {parameter.logical_type, parameter.block_in, parameter.zero_points.has_value()}, module);
    }
  }
  return families;
}

// A regular expression for these modules of a family and no others.
std::string pattern_for(const ModuleFamily& family,
                        const std::vector<std::vector<std::string>>& modules) {
  if (modules.size() == family.modules.size()) {
    return family.pattern;
  }
  std::vector<std::string> paths;
  std::vector<std::string> numbers;
  for (const std::vector<std::string>& module : modules) {
    paths.push_back(fmt::format("{}", fmt::join(module, "/")));
    numbers.push_back(*std::ranges::find_if(module, is_number));
  }
  if (family.num_numbers == 1) {
    const std::size_t at = family.pattern.find(kAnyNumber);
    return family.pattern.substr(0, at) + fmt::format("({})", fmt::join(numbers, "|")) +
           family.pattern.substr(at + std::string_view(kAnyNumber).size());
  }
  return fmt::format("{}", fmt::join(paths, "|"));
}

std::string rules_json(const Plan& plan) {
  Json rules = Json::array();
  for (const ModuleFamily& family : module_families(plan.parameters)) {
    for (const auto& [settings, modules] : family.quantized) {
      rules.push_back({{"module_path", pattern_for(family, modules)},
                       {"weight_qtype", settings.type},
                       {"act_qtype", nullptr},
                       {"tile_size", settings.tile == 0 ? Json(nullptr) : Json(settings.tile)},
                       {"weight_calibration_method", settings.asymmetric ? "minmax" : "absmax"}});
    }
  }
  return rules.dump(1) + "\n";
}

Json tensor_json(const QwixTensor& tensor,
                 std::string_view role,
                 const QwixParameter& parameter,
                 const std::string& file) {
  const bool is_codes = parameter.is_quantized() && role != "scale";
  Json json;
  json["file"] = file;
  json["shape"] = tensor.shape;
  json["dtype"] = dtype_name(tensor.dtype);
  json["logical_dtype"] = is_codes ? Json(parameter.logical_type) : Json(nullptr);
  json["role"] = role;
  json["axes"] = parameter.axes;
  if (parameter.is_quantized()) {
    json["opaque"] = parameter.opaque;
    json["block"] = {{"in", parameter.block_in == 0 ? Json(nullptr) : Json(parameter.block_in)},
                     {"out", parameter.block_out}};
  }
  return json;
}

std::string abstract_json(const Plan& plan) {
  std::unordered_map<std::string, std::string> files;
  for (const OutputShard& shard : plan.shards) {
    for (const TensorEntry& entry : shard.tensors()) {
      files[entry.name] = shard.file_name;
    }
  }
  std::map<std::string, Json> tensors;
  for (const QwixParameter& parameter : plan.parameters) {
    const auto add = [&](const QwixTensor& tensor, std::string_view role) {
      tensors[tensor.name] = tensor_json(tensor, role, parameter, files.at(tensor.name));
    };
    add(parameter.values, parameter.is_quantized() ? "qvalue" : "float");
    if (parameter.scales) {
      add(*parameter.scales, "scale");
    }
    if (parameter.zero_points) {
      add(*parameter.zero_points, "zero_point");
    }
  }
  Json json;
  json["schema"] = kSchema;
  json["program"] = fmt::format("quantmill {}", program_version());
  json["jax_model"] = parse_jax_model(load_jax_model(plan.recipe.jax_model)).name;
  json["tensors"] = tensors;
  return json.dump(1) + "\n";
}

}  // namespace

std::vector<TextFile> qwix_files(const Plan& plan) {
  return {{"load_qwix.py", qwix_loader()},
          {"qwix_abstract.json", abstract_json(plan)},
          {"qwix_rules.json", rules_json(plan)}};
}

}  // namespace quantmill
