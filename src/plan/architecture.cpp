#include "plan/architecture.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "plan/architecture_file.h"
#include "plan/json_text.h"
#include "plan/kv_scales.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kMaxArchitectureBytes = std::uint64_t{16} << 20;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

std::string builtin_names() {
  std::vector<std::string> names;
  for (const BuiltinArchitecture& builtin : builtin_architectures()) {
    names.push_back(builtin.name);
  }
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

// Whether `name` is `pattern` with a number for each placeholder.
bool matches_any_index(std::string_view pattern, std::string_view name) {
  while (!pattern.empty()) {
    if (pattern.front() == '{') {
      const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
      if (digits == 0) {
        return false;
      }
      name.remove_prefix(digits);
      pattern.remove_prefix(pattern.find('}') + 1);
    } else {
      if (name.empty() || name.front() != pattern.front()) {
        return false;
      }
      name.remove_prefix(1);
      pattern.remove_prefix(1);
    }
  }
  return name.empty();
}

// What config.json calls its model, in the order in which the names count.
std::vector<std::string> names_of_model(const JsonValue& config) {
  std::vector<std::string> names;
  const auto add = [&](const JsonValue* name) {
    if (name != nullptr && name->kind == JsonValue::Kind::kString) {
      names.push_back(name->text);
    }
  };
  const JsonValue* const classes = config.find("architectures");
  if (classes != nullptr && !classes->items.empty()) {
    add(&classes->items.front());
  }
  add(config.find("model_type"));
  for (const JsonValue& section : config.items) {
    add(section.find("model_type"));
  }
  return names;
}

// What may come before a name of the model's layers, in layers of parts too.
std::set<std::string> leads_of(const ArchitectureFile& file, const std::string& name) {
  std::set<std::string> leads = {""};
  for (const PartSpec& part : file.parts) {
    for (const std::string& layer : part.layers) {
      leads.insert(lead_of(layer, name).value_or(""));
    }
  }
  return leads;
}

// Patterns of inputs that are split over ranks, with and without the prefix.
std::set<std::string> row_patterns(const std::string& architecture_json) {
  const ArchitectureFile file = parse_architecture_file(architecture_json);
  std::set<std::string> patterns;
  for (const ActivationSpec& activation : file.activations) {
    if (activation.partition != Partition::kRow) {
      continue;
    }
    std::vector<std::string> names = activation.statistics.value_or(activation.readers);
    names.insert(names.end(), activation.readers.begin(), activation.readers.end());
    for (const std::string& name : names) {
      for (const std::string& lead : leads_of(file, name)) {
        patterns.insert(lead + module_of(name));
        for (const std::string& prefix : file.prefixes) {
          patterns.insert(prefix + lead + module_of(name));
        }
      }
    }
  }
  return patterns;
}

PartitionOf rule_for(std::set<std::string> patterns) {
  return [patterns = std::move(patterns)](const std::string& name) {
    const bool is_row =
        is_cache_record(name) ||
        std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
          return matches_any_index(pattern, name);
        });
    return is_row ? Partition::kRow : Partition::kReplicated;
  };
}

}  // namespace

std::size_t ColumnMap::channel_of(std::size_t column) const {
  const std::size_t group = (column - start) / (repeats * size);
  return group * size + (column - start) % size;
}

std::string ModelTensor::module() const {
  return module_of(slice ? name.substr(0, name.rfind('[')) : name);
}

std::uint64_t ModelTensor::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

std::string find_architecture(const std::string& config_json) {
  const JsonValue config = parse_json(config_json, "config.json", ErrorCode::kInput);
  const std::vector<std::string> wanted = names_of_model(config);
  if (wanted.empty()) {
    fail(
        "config.json: \"architectures\" names no model class; say which with --arch NAME or --arch "
        "FILE");
  }
  std::vector<std::pair<std::string, ArchitectureFile>> files;
  std::vector<std::string> known;
  for (const BuiltinArchitecture& builtin : builtin_architectures()) {
    files.emplace_back(builtin.json, parse_architecture_file(builtin.json));
    const std::vector<std::string>& match = files.back().second.match;
    known.insert(known.end(), match.begin(), match.end());
  }
  for (const std::string& name : wanted) {
    for (const auto& [json, file] : files) {
      if (std::ranges::find(file.match, name) != file.match.end()) {
        return json;
      }
    }
  }
  fail(
      fmt::format("config.json: the architecture {} is not known; known are {}. Another can be "
                  "described in a file "
                  "and given as --arch FILE",
                  wanted.front(),
                  fmt::join(known, ", ")));
}

std::string choose_architecture(const std::string& name_or_file, const std::string& config_json) {
  return name_or_file.empty() ? find_architecture(config_json) : load_architecture(name_or_file);
}

std::vector<std::string> models_of(const std::string& json) {
  return parse_architecture_file(json).match;
}

std::string load_architecture(const std::string& name_or_file) {
  for (const BuiltinArchitecture& builtin : builtin_architectures()) {
    if (builtin.name == name_or_file) {
      return builtin.json;
    }
  }
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(name_or_file, ignored)) {
    throw Error(ErrorCode::kUsage,
                fmt::format("architecture {}: neither a file nor one of the built-in {}",
                            name_or_file,
                            builtin_names()));
  }
  return read_text_file(name_or_file, kMaxArchitectureBytes);
}

PartitionOf partition_rule(const std::string& architecture_json) {
  return rule_for(row_patterns(architecture_json));
}

PartitionOf builtin_partition_rule() {
  std::set<std::string> patterns;
  for (const BuiltinArchitecture& builtin : builtin_architectures()) {
    patterns.merge(row_patterns(builtin.json));
  }
  return rule_for(std::move(patterns));
}

}  // namespace quantmill
