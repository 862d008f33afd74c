#include "plan/architecture.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "plan/architecture_file.h"
#include "plan/json_text.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kMaxArchitectureBytes = 16 * 1024 * 1024;

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

// Patterns of inputs that are split over ranks, with and without the prefix.
std::set<std::string> row_patterns(const std::string& architecture_json) {
  const ArchitectureFile file = parse_architecture_file(architecture_json);
  std::set<std::string> patterns;
  for (const ActivationSpec& activation : file.activations) {
    if (activation.partition == Partition::kRow && !activation.statistics.empty()) {
      patterns.insert(activation.statistics);
      patterns.insert(file.optional_prefix + activation.statistics);
    }
  }
  return patterns;
}

PartitionOf rule_for(std::set<std::string> patterns) {
  return [patterns = std::move(patterns)](const std::string& name) {
    const bool is_row =
        std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
          return matches_any_index(pattern, name);
        });
    return is_row ? Partition::kRow : Partition::kReplicated;
  };
}

}  // namespace

std::size_t ColumnMap::channel_of(std::size_t column) const {
  const std::size_t group = column / (repeats * size);
  return group * size + column % size;
}

std::string find_architecture(const std::string& config_json) {
  const JsonValue config = parse_json(config_json, "config.json", ErrorCode::kInput);
  const JsonValue* const names = config.find("architectures");
  if (names == nullptr || names->items.empty() ||
      names->items.front().kind != JsonValue::Kind::kString) {
    fail(
        "config.json: \"architectures\" names no model class; say which with --arch NAME or --arch "
        "FILE");
  }
  const std::string& wanted = names->items.front().text;
  std::vector<std::string> known;
  for (const BuiltinArchitecture& builtin : builtin_architectures()) {
    const ArchitectureFile file = parse_architecture_file(builtin.json);
    if (std::find(file.match.begin(), file.match.end(), wanted) != file.match.end()) {
      return builtin.json;
    }
    known.insert(known.end(), file.match.begin(), file.match.end());
  }
  fail(
      fmt::format("config.json: the architecture {} is not known; known are {}. Another can be "
                  "described in a file "
                  "and given as --arch FILE",
                  wanted,
                  fmt::join(known, ", ")));
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
