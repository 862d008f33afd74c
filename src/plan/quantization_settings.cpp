#include "plan/quantization_settings.h"

#include <functional>

#include "base/error.h"
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

}  // namespace

QuantizationSettings read_quantization_settings(const std::string& config_json) {
  QuantizationSettings settings;
  settings.block_size = {kFp8Block, kFp8Block};
  const JsonValue config = parse_json(config_json, "config.json", ErrorCode::kInput);
  const JsonValue* section = config.find("quantization_config");
  if (section == nullptr) {
    return settings;
  }
  settings.method = text_of(*section, "quant_method");
  settings.bits = number_of(*section, "bits");
  settings.group_size = number_of(*section, "group_size");
  settings.reorders_columns = text_of(*section, "desc_act") == "true";
  settings.checkpoint_format =
      text_of(*section, settings.method == "awq" ? "version" : "checkpoint_format");
  std::vector<std::uint64_t> block_size;
  for_each_member(*section, [&](const std::string& key, const JsonValue& value) {
    if (key == "weight_block_size" || key == "block_structure") {
      block_size.clear();
      for (const JsonValue& item : value.items) {
        block_size.push_back(item.as_unsigned().value_or(0));
      }
    } else if (key == "num_bits" && value.as_unsigned()) {
      settings.num_bits = settings.num_bits.value_or(*value.as_unsigned());
    } else if (key == "dtype" && settings.element.empty() && value.text.starts_with("fp6")) {
      settings.element = value.text;
    } else if (key == "dtype" && settings.integer.empty() && value.text.ends_with("int4")) {
      settings.integer = value.text;
    } else if (key == "pack_method") {
      settings.pack_method = value.text;
    }
  });
  if (block_size.size() == 2 && block_size[0] != 0 && block_size[1] != 0) {
    settings.block_size = block_size;
  }
  return settings;
}

}  // namespace quantmill
