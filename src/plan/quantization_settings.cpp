#include "plan/quantization_settings.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/pattern.h"
#include "base/regular_expression.h"
#include "plan/json_text.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kFp8Block = 128;  // DeepSeek-V3 and all that follow it

// Calls `visit` with every member of the value and of what is inside it.
void for_each_member(const JsonValue& value,
                     const std::function<void(const std::string&, const JsonValue&)>& visit) {
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    if (value.kind == JsonValue::Kind::kObject) {
      visit(value.keys[i], value.items[i]);
    }
    for_each_member(value.items[i], visit);
  }
}

std::string text_of(const JsonValue& section, const char* key) {
  const JsonValue* const value = section.find(key);
  return value == nullptr ? std::string() : value->text;
}

std::optional<std::uint64_t> number_of(const JsonValue& section, const char* key) {
  const JsonValue* const value = section.find(key);
  return value == nullptr ? std::nullopt : value->as_unsigned();
}

CodeSettings read_codes(const JsonValue& section) {
  CodeSettings codes;
  codes.block_size = {kFp8Block, kFp8Block};
  std::vector<std::uint64_t> block_size;
  for_each_member(section, [&](const std::string& key, const JsonValue& value) {
    if (key == "weight_block_size" || key == "block_structure") {
      block_size.clear();
      for (const JsonValue& item : value.items) {
        block_size.push_back(item.as_unsigned().value_or(0));
      }
    } else if (key == "num_bits" && value.as_unsigned()) {
      codes.num_bits = codes.num_bits.value_or(*value.as_unsigned());
    } else if (key == "dtype" && codes.element.empty() && value.text.starts_with("fp6")) {
      codes.element = value.text;
    } else if (key == "dtype" && codes.integer.empty() && value.text.ends_with("int4")) {
      codes.integer = value.text;
    } else if (key == "symmetric") {
      codes.is_symmetric = value.text == "true";
    }
  });
  if (block_size.size() == 2 && block_size[0] != 0 && block_size[1] != 0) {
    codes.block_size = block_size;
  }
  return codes;
}

// What a group says of weights, which what it says of activations may contradict.
CodeSettings read_weight_codes(const JsonValue& group, const char* key) {
  const JsonValue* const weights = group.find(key);
  return read_codes(weights != nullptr && !weights->items.empty() ? *weights : group);
}

// A target of compressed-tensors that names modules: a regular expression or a module's name. Class
// names have no dot.
bool names_modules(const std::string& target) {
  return target.starts_with("re:") || target.find('.') != std::string::npos;
}

std::function<bool(const std::string&)> matcher_of_target(const std::string& target) {
  if (!target.starts_with("re:")) {
    return [target](const std::string& module) { return module == target; };
  }
  return [expression = RegularExpression(target.substr(3))](const std::string& module) {
    return expression.matches_start(module);
  };
}

void read_config_groups(const JsonValue& groups, QuantizationSettings& settings) {
  bool has_others = false;
  for (const JsonValue& item : groups.items) {
    QuantizationSettings::Group group;
    group.codes = read_weight_codes(item, "weights");
    const JsonValue* const targets = item.find("targets");
    bool is_for_classes = false;
    for (const JsonValue& target : targets == nullptr ? JsonValue().items : targets->items) {
      if (names_modules(target.text)) {
        group.matchers.push_back(matcher_of_target(target.text));
      } else {
        is_for_classes = true;
      }
    }
    if (!has_others && (is_for_classes || groups.items.size() == 1)) {
      settings.others = group.codes;
      has_others = true;
    }
    settings.groups.push_back(std::move(group));
  }
}

void read_layer_configs(const JsonValue& layers, QuantizationSettings& settings) {
  for (std::size_t i = 0; i < layers.keys.size() && i < layers.items.size(); ++i) {
    settings.groups.push_back({{[pattern = layers.keys[i]](const std::string& module) {
                                 return matches_pattern(pattern, module);
                               }},
                               read_weight_codes(layers.items[i], "weight")});
  }
}

}  // namespace

const CodeSettings& QuantizationSettings::codes_of(const std::string& module) const {
  for (const Group& group : groups) {
    if (std::ranges::any_of(group.matchers, [&](const auto& matches) { return matches(module); })) {
      return group.codes;
    }
  }
  return others;
}

QuantizationSettings read_quantization_settings(const std::string& config_json) {
  QuantizationSettings settings;
  settings.others.block_size = {kFp8Block, kFp8Block};
  const JsonValue config = parse_json(config_json, "config.json", ErrorCode::kInput);
  const JsonValue* section = config.find("quantization_config");
  if (section == nullptr) {
    return settings;
  }
  settings.method = text_of(*section, "quant_method");
  settings.bits = number_of(*section, "bits");
  settings.group_size = number_of(*section, "group_size");
  settings.reorders_columns = text_of(*section, "desc_act") == "true";
  settings.is_symmetric = text_of(*section, "sym") == "true";
  settings.checkpoint_format =
      text_of(*section, settings.method == "awq" ? "version" : "checkpoint_format");
  if (const JsonValue* const exported = section->find("export")) {
    settings.pack_method = text_of(*exported, "pack_method");
  }
  const JsonValue* const global = section->find("global_quant_config");
  settings.others = global != nullptr ? read_weight_codes(*global, "weight") : read_codes(*section);
  if (const JsonValue* const groups = section->find("config_groups")) {
    read_config_groups(*groups, settings);
  }
  if (const JsonValue* const layers = section->find("layer_quant_config")) {
    read_layer_configs(*layers, settings);
  }
  return settings;
}

}  // namespace quantmill
