#include "plan/quark_config.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/pattern.h"
#include "base/version.h"
#include "plan/json_text.h"
#include "plan/quantization_sections.h"

namespace quantmill {

namespace {

// Both sections key by key: what amd-quark 0.13 exports for its scheme "mxfp4", and what the script
// that --compat seed reproduces writes (in another order below global_quant_config). The nulls and
// empty values are filled in.
constexpr std::string_view kQuarkSection = R"({
  "algo_config": null,
  "exclude": [],
  "export": {"kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder",
             "weight_format": "real_quantized", "weight_merge_groups": null},
  "global_quant_config": {"bias": null, "input_tensors": null, "output_tensors": null, "target_device": null,
                          "weight": null},
  "kv_cache_post_rope": false,
  "kv_cache_quant_config": {},
  "layer_quant_config": {},
  "layer_type_quant_config": {},
  "quant_method": "quark",
  "quant_mode": "eager_mode",
  "softmax_quant_spec": null,
  "version": ""
})";
constexpr std::string_view kTensorSpec = R"({
  "block_size": null, "ch_axis": -1, "dtype": "fp4", "enable_buffer_reuse": false, "group_size": 32,
  "is_dynamic": false, "is_scale_quant": false, "max_input_numel": 4194304, "mx_element_dtype": null,
  "observer_cls": "PerBlockMXObserver", "qscheme": "per_group", "round_method": "half_even",
  "scale_calculation_mode": "even", "scale_format": "e8m0", "scale_type": "float", "symmetric": null
})";
constexpr std::string_view kSeedVersion = "0.12+radiance-awq-mxfp4";

JsonValue literal(std::string_view text) {
  return parse_json(text, "built-in section", ErrorCode::kInternal);
}

JsonValue tensor_spec(bool is_dynamic, std::string_view scale_mode, bool with_zero_point) {
  JsonValue spec = literal(kTensorSpec);
  spec.set("is_dynamic", JsonValue::boolean(is_dynamic));
  spec.set("scale_calculation_mode", JsonValue::string(std::string(scale_mode)));
  if (with_zero_point) {
    spec.set("zero_point_type", JsonValue::string("int32"));
  }
  return spec;
}

// Activations are quantized while serving, by the servers' own rule, which is "even".
// Of the schemes mxfp4 and mxfp6, whose names in Quark are those of their elements.
JsonValue mx_spec(Scheme scheme, bool is_dynamic, std::string_view scale_mode) {
  JsonValue spec = tensor_spec(is_dynamic, scale_mode, true);
  const std::string_view element = scheme == Scheme::kMxfp6E2m3   ? "fp6_e2m3"
                                   : scheme == Scheme::kMxfp6E3m2 ? "fp6_e3m2"
                                                                  : "fp4";
  spec.set("dtype", JsonValue::string(std::string(element)));
  return spec;
}

// Of Quark's scheme "ptpc_fp8": a scale per row of weights, per token of activations.
JsonValue fp8_channel_spec(bool is_activation) {
  JsonValue spec = tensor_spec(is_activation, "", true);
  spec.set("ch_axis", JsonValue::number(std::uint64_t{is_activation}));
  spec.set("dtype", JsonValue::string("fp8_e4m3"));
  spec.set("group_size", JsonValue::null());
  spec.set("observer_cls", JsonValue::string("PerChannelMinMaxObserver"));
  spec.set("qscheme", JsonValue::string("per_channel"));
  spec.set("scale_calculation_mode", JsonValue::null());
  spec.set("scale_format", JsonValue::null());
  spec.set("symmetric", JsonValue::boolean(true));
  return spec;
}

// Quark has no word for scales that were searched, and readers take the bytes as they are.
std::string_view quark_scale_mode(ScaleRule rule) {
  return scale_rule_name(rule == ScaleRule::kMse ? ScaleRule::kEven : rule);
}

// How linears of a scheme are quantized, in place of the section's global_quant_config or beside
// it.
JsonValue layer_config(const JsonValue& empty, Scheme scheme, const Recipe& recipe) {
  JsonValue layer = empty;
  const bool is_fp8 = scheme == Scheme::kFp8Channel;
  layer.set("input_tensors", is_fp8 ? fp8_channel_spec(true) : mx_spec(scheme, true, "even"));
  layer.set("weight",
            is_fp8 ? fp8_channel_spec(false)
                   : mx_spec(scheme, false, quark_scale_mode(recipe.scale_rule)));
  return layer;
}

JsonValue quark_section(const Recipe& recipe,
                        const std::vector<SchemeModules>& schemes,
                        const std::vector<std::string>& exclude) {
  JsonValue section = literal(kQuarkSection);
  const JsonValue empty = *section.find("global_quant_config");
  section.set("global_quant_config", layer_config(empty, schemes.front().scheme, recipe));
  JsonValue layers = JsonValue::object();
  for (const SchemeModules& modules : schemes) {
    for (const std::string& pattern : modules.patterns) {
      layers.set(as_glob(pattern), layer_config(empty, modules.scheme, recipe));
    }
  }
  section.set("layer_quant_config", std::move(layers));
  section.set("exclude", JsonValue::array(exclude));
  section.set("version", JsonValue::string(fmt::format("0.13+quantmill-{}", program_version())));
  return section;
}

// The script's order of keys, and "even" although its rule is floor.
JsonValue seed_section() {
  JsonValue section = literal(kQuarkSection);
  JsonValue global = JsonValue::object();
  for (const char* key : {"bias", "output_tensors", "target_device"}) {
    global.set(key, JsonValue::null());
  }
  global.set("input_tensors", tensor_spec(true, "even", false));
  global.set("weight", tensor_spec(false, "even", false));
  section.set("global_quant_config", std::move(global));
  section.set("version", JsonValue::string(std::string(kSeedVersion)));
  return section;
}

// "dtype" is the name since transformers 4.56, "torch_dtype" the one before; a config may have
// either or both.
void set_dtype(const Recipe& recipe, JsonValue& config) {
  const char* const name = recipe.scheme == Scheme::kF32 ? "float32" : "bfloat16";
  const bool has_old_name = config.find("torch_dtype") != nullptr;
  if (has_old_name) {
    config.set("torch_dtype", JsonValue::string(name));
  }
  if (!has_old_name || config.find("dtype") != nullptr) {
    config.set("dtype", JsonValue::string(name));
  }
}

// The embeddings are two tensors in the output.
void untie(JsonValue& config) {
  const std::string key = "tie_word_embeddings";
  bool is_stated = config.find(key) != nullptr;
  for (JsonValue& section : config.items) {
    if (section.find(key) != nullptr) {
      section.set(key, JsonValue::boolean(false));
      is_stated = true;
    }
  }
  if (config.find(key) != nullptr || !is_stated) {
    config.set(key, JsonValue::boolean(false));
  }
}

// What stays unquantized and what does not among the tensors with one exclude_all.
struct Kind {
  std::string exclude_layers;
  std::set<std::uint64_t> kept_layers;
  std::set<std::uint64_t> quantized_layers;
  std::string kept_example;       // empty: none
  std::string quantized_example;  // empty: none
};

// The pattern for the kept layers in the checkpoint's numbering and the servers'. It must not hit a
// quantized layer.
std::string layer_pattern(const Kind& kind, std::optional<std::uint64_t> offset) {
  if (kind.exclude_layers.empty() || kind.kept_layers.empty()) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "{} is kept and {} is not, but the architecture has no pattern by which a server could "
            "tell them apart; keep all of them or none",
            kind.kept_example,
            kind.quantized_example));
  }
  if (!offset) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("{} is kept and {} is not, but config.json does not state by how much servers "
                    "shift its "
                    "layer numbers (num_target_layers); keep this kind in all layers or in none",
                    kind.kept_example,
                    kind.quantized_example));
  }
  std::set<std::uint64_t> numbers;
  for (const std::uint64_t layer : kind.kept_layers) {
    numbers.insert(layer);
    numbers.insert(layer + *offset);
  }
  for (const std::uint64_t layer : kind.quantized_layers) {
    if (numbers.count(layer) != 0 || numbers.count(layer + *offset) != 0) {
      throw Error(ErrorCode::kInput,
                  fmt::format("{} is kept and {} is not, but servers add {} to layer numbers, so "
                              "that the two can't "
                              "be told apart by number; keep this kind in all layers or in none",
                              kind.kept_example,
                              kind.quantized_example,
                              *offset));
    }
  }
  return replace_all(kind.exclude_layers, "{layers}", fmt::format("({})", fmt::join(numbers, "|")));
}

// What the checkpoint writes before the architecture's names.
std::string prefix_of(const ModelTensor& tensor, const ResolvedArchitecture& architecture) {
  std::string longest;
  for (const std::string& prefix : architecture.prefixes) {
    if (prefix.size() > longest.size() && tensor.name.starts_with(prefix)) {
      longest = prefix;
    }
  }
  return longest;
}

// A copied part in both spellings: a glob on checkpoint names and a regular expression on servers'.
void exclude_part(const std::string& pattern, std::set<std::string>& entries) {
  entries.insert("*" + pattern);
  entries.insert("re:.*" + replace_all(replace_all(pattern, ".", "\\."), "*", ".*"));
}

// Copied parts with matrices: by their pattern, or each matrix if others of the part are quantized.
void exclude_copied(const ResolvedArchitecture& architecture,
                    const std::vector<bool>& quantized,
                    std::set<std::string>& entries) {
  std::set<std::string> mixed;
  for (std::size_t i = 0; i < quantized.size(); ++i) {
    if (quantized[i]) {
      mixed.insert(architecture.tensors[i].copied_by);
    }
  }
  for (std::size_t i = 0; i < quantized.size(); ++i) {
    const ModelTensor& tensor = architecture.tensors[i];
    if (tensor.copied_by.empty() || tensor.shape.size() < 2 || quantized[i]) {
      continue;
    }
    if (!mixed.contains(tensor.copied_by)) {
      exclude_part(tensor.copied_by, entries);
      continue;
    }
    entries.insert(tensor.module);
    if (tensor.shape.size() > 2) {  // experts in one tensor, which servers call by their module
      entries.insert(tensor.module.substr(0, tensor.module.rfind('.')));
    }
  }
}

}  // namespace

std::vector<std::string> exclude_list(const ResolvedArchitecture& architecture,
                                      const std::vector<bool>& quantized) {
  check_invariant(quantized.size() == architecture.tensors.size(), "one flag for each tensor");
  std::set<std::string> entries(architecture.extra_exclude.begin(),
                                architecture.extra_exclude.end());
  exclude_copied(architecture, quantized, entries);
  std::map<std::string, Kind> kinds;  // by exclude_all
  for (std::size_t i = 0; i < quantized.size(); ++i) {
    const ModelTensor& tensor = architecture.tensors[i];
    if (tensor.role != TensorRole::kLinear || !tensor.copied_by.empty()) {
      continue;
    }
    if (!quantized[i]) {
      entries.insert(tensor.module);
    }
    if (tensor.exclude_all.empty()) {
      if (!quantized[i] && !tensor.fused_group.empty()) {
        entries.insert(prefix_of(tensor, architecture) + tensor.fused_group);
      }
      continue;
    }
    Kind& kind = kinds[tensor.exclude_all];
    kind.exclude_layers = tensor.exclude_layers;
    (quantized[i] ? kind.quantized_example : kind.kept_example) = tensor.name;
    if (tensor.layer) {
      (quantized[i] ? kind.quantized_layers : kind.kept_layers).insert(*tensor.layer);
    }
  }
  for (const auto& [exclude_all, kind] : kinds) {
    if (!kind.kept_example.empty()) {
      entries.insert(kind.quantized_example.empty()
                         ? exclude_all
                         : layer_pattern(kind, architecture.server_layer_offset));
    }
  }
  return {entries.begin(), entries.end()};
}

std::string output_config(const std::string& source_config,
                          const Recipe& recipe,
                          const std::vector<SchemeModules>& schemes,
                          const std::vector<std::string>& exclude) {
  JsonValue config = parse_json(source_config, "config.json", ErrorCode::kInput);
  if (config.kind != JsonValue::Kind::kObject) {
    throw Error(ErrorCode::kInput,
                fmt::format("config.json: an object is wanted, found {}", describe_json(config)));
  }
  if (recipe.untie) {
    untie(config);
  }
  if (recipe.compat == Compat::kSeed && recipe.layout == Layout::kQuark) {
    config.set("quantization_config", seed_section());
    return print_json(config);
  }
  switch (recipe.layout) {
    case Layout::kPlain:
      config.remove("quantization_config");
      set_dtype(recipe, config);
      break;
    case Layout::kQuark:
      config.set("quantization_config", quark_section(recipe, schemes, exclude));
      break;
    case Layout::kCompressedTensors:
      config.set("quantization_config", compressed_tensors_section(schemes, exclude));
      break;
    case Layout::kFp8:
      config.set("quantization_config", fp8_section(exclude));
      break;
  }
  return print_json(config) + "\n";
}

}  // namespace quantmill
