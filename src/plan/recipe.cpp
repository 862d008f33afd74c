#include "plan/recipe.h"

#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/byte_size.h"
#include "base/error.h"
#include "plan/json_text.h"

namespace quantmill {

namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kUsage, message);
}

// The values of an option with their names, in the order in which messages list them.
template <typename Value, std::size_t kCount>
using Names = std::array<std::pair<Value, std::string_view>, kCount>;

constexpr Names<Scaling, 4> kScalings{{{Scaling::kNone, "none"},
                                       {Scaling::kAwqGrid, "awq-grid"},
                                       {Scaling::kBalance, "balance"},
                                       {Scaling::kBlockGrid, "block-grid"}}};
constexpr Names<Objective, 2> kObjectives{
    {{Objective::kW4A16, "w4a16"}, {Objective::kW4A4, "w4a4"}}};
constexpr Names<ScaleRule, 5> kScaleRules{{{ScaleRule::kEven, "even"},
                                           {ScaleRule::kFloor, "floor"},
                                           {ScaleRule::kRceil, "rceil"},
                                           {ScaleRule::kCeil, "ceil"},
                                           {ScaleRule::kMse, "mse"}}};
constexpr Names<FoldScales, 3> kFoldScales{
    {{FoldScales::kExact, "exact"}, {FoldScales::kPow2, "pow2"}, {FoldScales::kOff, "off"}}};
constexpr Names<Compat, 2> kCompats{{{Compat::kNone, "none"}, {Compat::kSeed, "seed"}}};

constexpr std::string_view kKeep = "keep";  // in place of a scheme
constexpr std::array<std::string_view, 17> kKeys{"scheme",
                                                 "schemes",
                                                 "layout",
                                                 "scaling",
                                                 "alphas",
                                                 "betas",
                                                 "objective",
                                                 "scale_rule",
                                                 "fold_scales",
                                                 "min_tokens",
                                                 "keep",
                                                 "include",
                                                 "compat",
                                                 "architecture",
                                                 "allow_unknown",
                                                 "untie",
                                                 "max_shard_size"};

template <typename Value, std::size_t kCount>
std::string_view name_of(const Names<Value, kCount>& names, Value value) {
  for (const auto& [candidate, name] : names) {
    if (candidate == value) {
      return name;
    }
  }
  throw Error(ErrorCode::kInternal, "internal fault: an option value without a name");
}

template <typename Value, std::size_t kCount>
Value value_of(const Names<Value, kCount>& names,
               std::string_view option,
               std::string_view wanted) {
  std::vector<std::string_view> known;
  for (const auto& [value, name] : names) {
    if (name == wanted) {
      return value;
    }
    known.push_back(name);
  }
  fail(fmt::format(
      "{}: there is no \"{}\"; choose one of {}", option, wanted, fmt::join(known, ", ")));
}

const std::string& text_of(const JsonValue& value, const std::string& key) {
  if (value.kind != JsonValue::Kind::kString) {
    fail(fmt::format("{} must be text, found {}", key, describe_json(value)));
  }
  return value.text;
}

const std::vector<JsonValue>& list_of(const JsonValue& value, const std::string& key) {
  if (value.kind != JsonValue::Kind::kArray) {
    fail(fmt::format("{} must be a list, found {}", key, describe_json(value)));
  }
  return value.items;
}

std::vector<double> alphas_of(const JsonValue& value, const std::string& key) {
  std::vector<double> alphas;
  for (const JsonValue& item : list_of(value, key)) {
    const std::optional<double> alpha = item.as_double();
    if (!alpha) {
      fail(fmt::format("{} must hold numbers, found {}", key, describe_json(item)));
    }
    alphas.push_back(*alpha);
  }
  return alphas;
}

std::vector<std::string> texts_of(const JsonValue& value, const std::string& key) {
  std::vector<std::string> texts;
  for (const JsonValue& item : list_of(value, key)) {
    texts.push_back(text_of(item, key));
  }
  return texts;
}

SchemeRule rule_of(std::string pattern, const std::string& scheme) {
  SchemeRule rule{std::move(pattern), std::nullopt};
  if (scheme != kKeep) {
    rule.scheme = scheme_from_name(scheme);
  }
  return rule;
}

std::vector<SchemeRule> rules_of(const JsonValue& value, const std::string& key) {
  std::vector<SchemeRule> rules;
  for (const JsonValue& item : list_of(value, key)) {
    const JsonValue* const pattern = item.find("match");
    const JsonValue* const scheme = item.find("scheme");
    if (item.keys.size() != 2 || pattern == nullptr || scheme == nullptr) {
      fail(fmt::format("{} must hold objects with \"match\" and \"scheme\", found {}",
                       key,
                       describe_json(item)));
    }
    rules.push_back(rule_of(text_of(*pattern, "match"), text_of(*scheme, "scheme")));
  }
  return rules;
}

std::uint64_t size_of(const JsonValue& value, const std::string& key) {
  if (value.kind == JsonValue::Kind::kString) {
    return parse_size(value.text);
  }
  const std::optional<std::uint64_t> bytes = value.as_unsigned();
  if (!bytes) {
    fail(fmt::format(
        "{} must be a number of bytes or text like \"4G\", found {}", key, describe_json(value)));
  }
  return *bytes;
}

void apply_key(const std::string& key, const JsonValue& value, Recipe& recipe) {
  if (key == "scheme") {
    recipe.scheme = scheme_from_name(text_of(value, key));
  } else if (key == "schemes") {
    recipe.schemes = rules_of(value, key);
  } else if (key == "layout") {
    recipe.layout = layout_from_name(text_of(value, key));
  } else if (key == "scaling") {
    recipe.scaling = scaling_from_name(text_of(value, key));
  } else if (key == "alphas") {
    recipe.alphas = alphas_of(value, key);
  } else if (key == "betas") {
    recipe.betas = alphas_of(value, key);
  } else if (key == "objective") {
    recipe.objective = objective_from_name(text_of(value, key));
  } else if (key == "scale_rule") {
    recipe.scale_rule = scale_rule_from_name(text_of(value, key));
  } else if (key == "fold_scales") {
    recipe.fold_scales = fold_scales_from_name(text_of(value, key));
  } else if (key == "min_tokens") {
    const std::optional<std::uint64_t> tokens = value.as_unsigned();
    if (!tokens) {
      fail(fmt::format("{} must be a number of tokens, found {}", key, describe_json(value)));
    }
    recipe.min_tokens = *tokens;
  } else if (key == "keep") {
    recipe.keep = texts_of(value, key);
  } else if (key == "include") {
    recipe.include = texts_of(value, key);
  } else if (key == "compat") {
    recipe.compat = compat_from_name(text_of(value, key));
  } else if (key == "architecture") {
    recipe.architecture = text_of(value, key);
  } else if (key == "allow_unknown" || key == "untie") {
    if (value.kind != JsonValue::Kind::kBoolean) {
      fail(fmt::format("{} must be true or false, found {}", key, describe_json(value)));
    }
    (key == "untie" ? recipe.untie : recipe.allow_unknown) = value.text == "true";
  } else if (key == "max_shard_size") {
    recipe.max_shard_bytes = size_of(value, key);
  } else {
    fail(fmt::format("unknown key \"{}\"; known are {}", key, fmt::join(kKeys, ", ")));
  }
}

}  // namespace

void apply_recipe_json(const std::string& json, Recipe& recipe) {
  const JsonValue root = parse_json(json, "recipe", ErrorCode::kUsage);
  if (root.kind != JsonValue::Kind::kObject) {
    fail(fmt::format("recipe: an object is wanted, found {}", describe_json(root)));
  }
  Recipe changed = recipe;
  with_context("recipe", [&] {
    for (std::size_t i = 0; i < root.keys.size(); ++i) {
      apply_key(root.keys[i], root.items[i], changed);
    }
  });
  if (root.find("scheme") != nullptr && root.find("layout") == nullptr) {
    changed.layout = default_layout(changed.scheme);
  }
  recipe = std::move(changed);
}

SchemeRule parse_scheme_rule(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) {
    fail(
        fmt::format("--scheme-for {}: PATTERN=SCHEME is wanted, such as "
                    "'*.self_attn.*=fp8-channel', or PATTERN={}",
                    text,
                    kKeep));
  }
  return rule_of(text.substr(0, equals), text.substr(equals + 1));
}

namespace {

JsonValue rules_json(const std::vector<SchemeRule>& rules) {
  JsonValue list;
  list.kind = JsonValue::Kind::kArray;
  for (const SchemeRule& rule : rules) {
    JsonValue item = JsonValue::object();
    item.set("match", JsonValue::string(rule.pattern));
    item.set("scheme",
             JsonValue::string(std::string(rule.scheme ? scheme_name(*rule.scheme) : kKeep)));
    list.items.push_back(std::move(item));
  }
  return list;
}

}  // namespace

std::string to_json(const Recipe& recipe) {
  const auto named = [](std::string_view name) { return JsonValue::string(std::string(name)); };
  const auto numbers = [](const std::vector<double>& values) {
    JsonValue list;
    list.kind = JsonValue::Kind::kArray;
    for (const double value : values) {
      list.items.push_back(JsonValue::number(value));
    }
    return list;
  };
  JsonValue root = JsonValue::object();
  root.set("scheme", named(scheme_name(recipe.scheme)));
  root.set("schemes", rules_json(recipe.schemes));
  root.set("layout", named(layout_name(recipe.layout)));
  root.set("scaling", named(scaling_name(recipe.scaling)));
  root.set("alphas", numbers(recipe.alphas));
  root.set("betas", numbers(recipe.betas));
  root.set("objective", named(objective_name(recipe.objective)));
  root.set("scale_rule", named(scale_rule_name(recipe.scale_rule)));
  root.set("fold_scales", named(fold_scales_name(recipe.fold_scales)));
  root.set("min_tokens", JsonValue::number(recipe.min_tokens));
  root.set("keep", JsonValue::array(recipe.keep));
  root.set("include", JsonValue::array(recipe.include));
  root.set("compat", named(compat_name(recipe.compat)));
  root.set("architecture", JsonValue::string(recipe.architecture));
  root.set("allow_unknown", JsonValue::boolean(recipe.allow_unknown));
  root.set("untie", JsonValue::boolean(recipe.untie));
  root.set("max_shard_size", JsonValue::number(recipe.max_shard_bytes));
  return print_json(root);
}

std::string_view scaling_name(Scaling scaling) {
  return name_of(kScalings, scaling);
}

std::string_view objective_name(Objective objective) {
  return name_of(kObjectives, objective);
}

std::string_view scale_rule_name(ScaleRule rule) {
  return name_of(kScaleRules, rule);
}

std::string_view fold_scales_name(FoldScales mode) {
  return name_of(kFoldScales, mode);
}

std::string_view compat_name(Compat compat) {
  return name_of(kCompats, compat);
}

Scaling scaling_from_name(std::string_view name) {
  return value_of(kScalings, "scaling", name);
}

Objective objective_from_name(std::string_view name) {
  return value_of(kObjectives, "objective", name);
}

ScaleRule scale_rule_from_name(std::string_view name) {
  return value_of(kScaleRules, "scale_rule", name);
}

FoldScales fold_scales_from_name(std::string_view name) {
  return value_of(kFoldScales, "fold_scales", name);
}

Compat compat_from_name(std::string_view name) {
  return value_of(kCompats, "compat", name);
}

}  // namespace quantmill
