#include "plan/parameters.h"

#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace quantmill {

namespace {

const JsonValue* find_path(const JsonValue& value, std::string_view path) {
  if (path.empty()) {
    return value.kind == JsonValue::Kind::kNull ? nullptr : &value;
  }
  const std::size_t dot = path.find('.');
  const std::string_view step = path.substr(0, dot);
  const std::string_view rest = dot == std::string_view::npos ? "" : path.substr(dot + 1);
  if (step != "*") {
    const JsonValue* const member = value.find(step);
    return member == nullptr ? nullptr : find_path(*member, rest);
  }
  for (const JsonValue& member : value.items) {
    if (const JsonValue* const found = find_path(member, rest)) {
      return found;
    }
  }
  return nullptr;
}

[[noreturn]] void fail_kind(const std::string& key,
                            std::string_view wanted,
                            const JsonValue& value) {
  throw Error(
      ErrorCode::kInput,
      fmt::format("config.json: {} must be {}, found {}", key, wanted, describe_json(value)));
}

Value number_of(const std::string& key, const JsonValue& value) {
  if (value.kind == JsonValue::Kind::kBoolean) {
    return Value::of_truth(value.text == "true");
  }
  const std::optional<std::uint64_t> number = value.as_unsigned();
  if (!number) {
    fail_kind(key, "a non-negative integer", value);
  }
  return Value::of(*number);
}

Value list_of(const std::string& key, const JsonValue& value) {
  if (value.kind != JsonValue::Kind::kArray) {
    fail_kind(key, "a list", value);
  }
  std::vector<Value> items;
  for (const JsonValue& item : value.items) {
    items.push_back(item.kind == JsonValue::Kind::kString ? Value::of(item.text)
                                                          : number_of(key, item));
  }
  return Value::of(std::move(items));
}

Value value_of(const ParameterSpec& spec, const std::string& key, const JsonValue& value) {
  if (spec.count) {
    if (value.kind != JsonValue::Kind::kArray) {
      fail_kind(key, "a list", value);
    }
    return Value::of(std::uint64_t{value.items.size()});
  }
  if (spec.kind == Value::Kind::kList) {
    return list_of(key, value);
  }
  if (spec.kind == Value::Kind::kNumber) {
    return number_of(key, value);
  }
  if (value.kind != JsonValue::Kind::kString) {
    fail_kind(key, "a text", value);
  }
  return Value::of(value.text);
}

Parameter default_of(const ParameterSpec& spec, const Parameters& before) {
  try {
    const Value value = evaluate(
        spec.fallback, [&](const std::string& name) { return parameter_value(before, name); });
    if (value.kind == spec.kind) {
      return {value, {}};
    }
    return {std::nullopt,
            fmt::format("the default of {} is of another kind than \"kind\" says", spec.name)};
  } catch (const Error& error) {
    return {std::nullopt,
            fmt::format("config.json does not state {}, and its default can't be used: {}",
                        spec.name,
                        error.message())};
  }
}

Parameter read_parameter(const ParameterSpec& spec,
                         const JsonValue& config,
                         const std::vector<std::string>& sections,
                         const Parameters& before) {
  for (const std::string& key : spec.config_keys) {
    for (const std::string& section : sections) {
      const std::string path = fmt::format("{}.{}", section, key);
      if (const JsonValue* const value = find_path(config, path)) {
        return {value_of(spec, path, *value), {}};
      }
    }
    if (const JsonValue* const value = find_path(config, key)) {
      return {value_of(spec, key, *value), {}};
    }
  }
  if (!spec.fallback.empty()) {
    return default_of(spec, before);
  }
  if (spec.optional) {
    return {std::nullopt, fmt::format("config.json does not state {}", spec.name)};
  }
  throw Error(ErrorCode::kInput,
              fmt::format("config.json: {} is missing, and the architecture needs it ({})",
                          fmt::join(spec.config_keys, " or "),
                          spec.name));
}

}  // namespace

Parameters read_parameters(const std::vector<ParameterSpec>& specs,
                           const JsonValue& config,
                           const std::vector<std::string>& sections) {
  Parameters parameters;
  for (const ParameterSpec& spec : specs) {
    parameters[spec.name] = with_context(fmt::format("parameter {}", spec.name), [&] {
      return read_parameter(spec, config, sections, parameters);
    });
  }
  return parameters;
}

Value parameter_value(const Parameters& parameters, const std::string& name) {
  const auto found = parameters.find(name);
  if (found == parameters.end()) {
    throw Error(ErrorCode::kInput, fmt::format("there is no parameter {}", name));
  }
  if (!found->second.value) {
    throw Error(ErrorCode::kInput, found->second.why_missing);
  }
  return *found->second.value;
}

}  // namespace quantmill
