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
#include "plan/quark_section.h"

namespace quantmill {

namespace {

// "dtype" is the name since transformers 4.56, "torch_dtype" the one before; a config may have
// either or both.
void set_dtype(const Recipe& recipe, JsonValue& config) {
  const char* const name = recipe.scheme == Scheme::kF32   ? "float32"
                           : recipe.scheme == Scheme::kF16 ? "float16"
                                                           : "bfloat16";
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
    if (numbers.contains(layer) || numbers.contains(layer + *offset)) {
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

// A module by itself, and what servers fuse it into.
void exclude_module(const ModelTensor& tensor,
                    const ResolvedArchitecture& architecture,
                    std::set<std::string>& entries) {
  const std::string module = tensor.module();
  entries.insert(module);
  // Experts in one tensor, which servers call by their module.
  if (tensor.shape.size() > 2 && module == tensor.name) {
    entries.insert(module.substr(0, module.rfind('.')));
  }
  if (!tensor.fused_group.empty()) {
    entries.insert(prefix_of(tensor, architecture) + tensor.fused_group);
  }
}

// Copied parts with matrices: by their pattern where the layout has patterns, or each matrix, as
// also where others of the part are quantized.
void exclude_copied(const ResolvedArchitecture& architecture,
                    const std::vector<bool>& quantized,
                    bool has_patterns,
                    std::set<std::string>& entries) {
  std::set<std::string> mixed;
  for (std::size_t i = 0; i < quantized.size(); ++i) {
    if (quantized[i]) {
      mixed.insert(architecture.tensors[i].copied_by.str());
    }
  }
  for (std::size_t i = 0; i < quantized.size(); ++i) {
    const ModelTensor& tensor = architecture.tensors[i];
    if (tensor.copied_by.empty() || tensor.shape.size() < 2 || quantized[i]) {
      continue;
    }
    if (has_patterns && !mixed.contains(tensor.copied_by.str())) {
      exclude_part(tensor.copied_by.str(), entries);
    } else {
      exclude_module(tensor, architecture, entries);
    }
  }
}

}  // namespace

std::vector<std::string> exclude_list(const ResolvedArchitecture& architecture,
                                      const std::vector<bool>& quantized,
                                      Layout layout) {
  check_invariant(quantized.size() == architecture.tensors.size(), "one flag for each tensor");
  std::set<std::string> entries(architecture.extra_exclude.begin(),
                                architecture.extra_exclude.end());
  exclude_copied(architecture, quantized, layout != Layout::kFp8, entries);
  std::map<std::string, Kind> kinds;  // by exclude_all
  for (std::size_t i = 0; i < quantized.size(); ++i) {
    const ModelTensor& tensor = architecture.tensors[i];
    if (tensor.role != TensorRole::kLinear || !tensor.copied_by.empty()) {
      continue;
    }
    if (!quantized[i]) {
      entries.insert(tensor.module());
    }
    if (tensor.exclude_all.empty()) {
      if (!quantized[i] && !tensor.fused_group.empty()) {
        entries.insert(prefix_of(tensor, architecture) + tensor.fused_group);
      }
      continue;
    }
    Kind& kind = kinds[tensor.exclude_all.str()];
    kind.exclude_layers = tensor.exclude_layers.str();
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
    case Layout::kQwix:
      config.remove("quantization_config");
      if (is_floating_point(recipe.scheme)) {
        set_dtype(recipe, config);
      }
      break;
    case Layout::kPlain:
      config.remove("quantization_config");
      set_dtype(recipe, config);
      break;
    case Layout::kQuark:
      config.set("quantization_config", quark_section(recipe, schemes, exclude));
      break;
    case Layout::kCompressedTensors:
      config.set("quantization_config", compressed_tensors_section(recipe, schemes, exclude));
      break;
    case Layout::kGptOss:
      config.set("quantization_config", gpt_oss_section(exclude));
      break;
    case Layout::kFp8:
      config.set("quantization_config", fp8_section(exclude));
      break;
  }
  return print_json(config) + "\n";
}

}  // namespace quantmill
