#include "plan/qwix/jax_model.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "plan/architecture_specs.h"
#include "plan/object_reader.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kSchema = 1;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{16} << 20;
constexpr int kMaxExtends = 8;
constexpr std::string_view kDefault = "nnx";
constexpr std::string_view kPartAxis = "part";

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

std::vector<std::pair<std::string, std::string>> read_expressions(const ObjectReader& reader,
                                                                  std::string_view key) {
  std::vector<std::pair<std::string, std::string>> result;
  if (reader.find(key) == nullptr) {
    return result;
  }
  const JsonValue& object = reader.object(key);
  for (std::size_t i = 0; i < object.keys.size(); ++i) {
    if (object.items[i].kind != JsonValue::Kind::kString) {
      fail(fmt::format(R"({}: "{}" in "{}" must be an expression in quotes, found {})",
                       reader.where(),
                       object.keys[i],
                       key,
                       describe_json(object.items[i])));
    }
    result.emplace_back(object.keys[i], object.items[i].text);
  }
  return result;
}

AxisTake read_take(const ObjectReader& rule) {
  const ObjectReader reader(
      rule.object("take"), rule.where() + ", take", {"axis", "start", "size"});
  return {reader.text("axis"), reader.text("start"), reader.text("size")};
}

void check_axes(const JaxRule& rule, const std::string& where) {
  const bool joins = rule.from.size() > 1;
  if (!rule.axes) {
    if (joins || !rule.at.empty() || !rule.sizes.empty() || rule.take || rule.opaque) {
      fail(where + ": \"axes\" is needed to join, stack, split or take");
    }
    return;
  }
  const bool stacks_parts = has_axis(rule.axes->to, std::string(kPartAxis)) &&
                            !has_axis(rule.axes->from, std::string(kPartAxis));
  if (stacks_parts && !joins) {
    fail(where + ": the axis part counts several \"from\", and there is one");
  }
  if (joins && !stacks_parts && !has_axis(rule.axes->from, rule.join)) {
    fail(
        fmt::format("{}: several \"from\" are joined along \"join\", which names an axis of the "
                    "left side, or stacked along an axis part of the right side",
                    where));
  }
  for (const auto& [axis, size] : rule.sizes) {
    if (!has_axis(rule.axes->from, axis)) {
      fail(fmt::format("{}: \"sizes\" has {}, which is no axis of the left side", where, axis));
    }
  }
}

JaxRule read_rule(const JsonValue& value) {
  const ObjectReader reader(
      value,
      "weights",
      {"from", "to", "if", "axes", "join", "at", "sizes", "take", "opaque", "block"});
  JaxRule rule;
  const std::vector<std::string> from = reader.at("from").kind == JsonValue::Kind::kString
                                            ? std::vector<std::string>{reader.text("from")}
                                            : reader.texts_or_empty("from");
  if (from.empty()) {
    fail("weights: \"from\" is an empty list");
  }
  const std::string where = "weights " + from.front();
  with_context(where, [&] {
    for (const std::string& name : from) {
      rule.from.emplace_back(name);
    }
    rule.to = reader.text("to");
    rule.condition = reader.text_or_empty("if");
    if (reader.find("axes") != nullptr) {
      rule.axes = parse_axis_pattern(reader.text("axes"));
    }
    rule.join = reader.text_or_empty("join");
    rule.at = read_expressions(reader, "at");
    rule.sizes = read_expressions(reader, "sizes");
    if (reader.find("take") != nullptr) {
      rule.take = read_take(reader);
    }
    rule.opaque = reader.flag("opaque");
    rule.block = reader.text_or_empty("block");
  });
  check_axes(rule, where);
  return rule;
}

void read_parameter_specs(const ObjectReader& reader, JaxModel& model) {
  if (reader.find("parameters") == nullptr) {
    return;
  }
  const JsonValue& parameters = reader.object("parameters");
  for (std::size_t i = 0; i < parameters.keys.size(); ++i) {
    ParameterSpec spec = read_parameter_spec(parameters.keys[i], parameters.items[i]);
    const auto same = std::ranges::find(model.parameters, spec.name, &ParameterSpec::name);
    if (same == model.parameters.end()) {
      model.parameters.push_back(std::move(spec));
    } else {
      *same = std::move(spec);
    }
  }
}

std::string builtin_names() {
  std::vector<std::string> names;
  for (const BuiltinJaxModel& builtin : builtin_jax_models()) {
    names.push_back(builtin.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

JaxModel parse(const std::string& json, int depth) {
  const JsonValue root = parse_json(json, "JAX model", ErrorCode::kInput);
  const JsonValue* const stated = root.find("name");
  const std::string where = "JAX model " + (stated == nullptr ? "file" : stated->text);
  const ObjectReader reader(root,
                            where,
                            {"schema",
                             "name",
                             "extends",
                             "prefixes",
                             "config_sections",
                             "parameters",
                             "leave_out",
                             "weights"});
  if (reader.at("schema").as_unsigned() != kSchema) {
    fail(fmt::format("{}: this program knows schema {} only", where, kSchema));
  }
  JaxModel model;
  if (reader.find("extends") != nullptr) {
    const std::string base = reader.text("extends");
    const std::vector<BuiltinJaxModel> builtins = builtin_jax_models();
    const auto found = std::ranges::find(builtins, base, &BuiltinJaxModel::name);
    if (found == builtins.end() || depth == kMaxExtends) {
      fail(fmt::format(
          "{}: extends {}, which is none of the built-in {}", where, base, builtin_names()));
    }
    model = parse(found->json, depth + 1);
  }
  return with_context(where, [&] {
    model.name = reader.text("name");
    if (reader.find("prefixes") != nullptr) {
      model.prefixes = reader.texts_or_empty("prefixes");
    }
    if (reader.find("config_sections") != nullptr) {
      model.config_sections = reader.texts_or_empty("config_sections");
    }
    read_parameter_specs(reader, model);
    for (const std::string& pattern : reader.texts_or_empty("leave_out")) {
      model.left_out.push_back(pattern);
    }
    std::vector<JaxRule> rules;
    for (const JsonValue& value : reader.items("weights")) {
      rules.push_back(read_rule(value));
    }
    model.rules.insert(model.rules.begin(), rules.begin(), rules.end());
    return model;
  });
}

}  // namespace

std::string load_jax_model(const std::string& name_or_file) {
  const std::string wanted = name_or_file.empty() ? std::string(kDefault) : name_or_file;
  for (const BuiltinJaxModel& builtin : builtin_jax_models()) {
    if (builtin.name == wanted) {
      return builtin.json;
    }
  }
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(wanted, ignored)) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format(
            "JAX model {}: neither a file nor one of the built-in {}", wanted, builtin_names()));
  }
  return read_text_file(wanted, kMaxFileBytes);
}

JaxModel parse_jax_model(const std::string& json) {
  return parse(json, 0);
}

std::uint64_t RuleNames::number(const std::string& expression) const {
  return evaluate_number(expression, [&](const std::string& name) {
    for (const auto& [known, value] : values_) {
      if (known == name) {
        return value;
      }
    }
    return parameter_value(parameters_, name);
  });
}

}  // namespace quantmill
