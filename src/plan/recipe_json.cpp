#include "plan/recipe_json.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

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

constexpr std::array<std::string_view, 26> kKeys{
    "scheme",         "schemes",        "layout",    "scaling",     "alphas",       "betas",
    "objective",      "scale_rule",     "rounding",  "fold_scales", "input_scales", "kv_cache",
    "min_tokens",     "keep",           "include",   "compat",      "architecture", "allow_unknown",
    "untie",          "max_shard_size", "jax_model", "scale_type",  "target_bits",  "target_size",
    "target_schemes", "chosen"};

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

std::vector<SchemeRule> rules_of(const JsonValue& value, const std::string& key) {
  std::vector<SchemeRule> rules;
  for (const JsonValue& item : list_of(value, key)) {
    const JsonValue* const pattern = item.find("match");
    const JsonValue* const scheme = item.find("scheme");
    if (item.keys.size() != 2 || pattern == nullptr || scheme == nullptr) {
      fail(fmt::format(
          R"({} must hold objects with "match" and "scheme", found {})", key, describe_json(item)));
    }
    rules.push_back({text_of(*pattern, "match"), choice_from_name(text_of(*scheme, "scheme"))});
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

ChosenSchemes chosen_of(const JsonValue& value, const std::string& key) {
  if (value.kind != JsonValue::Kind::kObject) {
    fail(fmt::format(
        "{} must be an object of names with schemes, found {}", key, describe_json(value)));
  }
  ChosenSchemes chosen;
  for (std::size_t i = 0; i < value.keys.size(); ++i) {
    chosen[value.keys[i]] = choice_from_name(text_of(value.items[i], key));
  }
  return chosen;
}

// The keys of a target; false if it is another.
bool apply_target_key(const std::string& key, const JsonValue& value, Recipe& recipe) {
  if (key == "target_bits") {
    recipe.target.bits = value.as_double();
    if (!recipe.target.bits) {
      fail(fmt::format("{} must be a number, found {}", key, describe_json(value)));
    }
  } else if (key == "target_size") {
    recipe.target.bytes = size_of(value, key);
  } else if (key == "target_schemes") {
    recipe.target.schemes.clear();
    for (const std::string& name : texts_of(value, key)) {
      recipe.target.schemes.push_back(choice_from_name(name));
    }
  } else if (key == "chosen") {
    recipe.chosen = chosen_of(value, key);
  } else {
    return false;
  }
  return true;
}

void apply_key(const std::string& key, const JsonValue& value, Recipe& recipe) {
  if (apply_target_key(key, value, recipe)) {
    return;
  }
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
  } else if (key == "rounding") {
    recipe.rounding = rounding_from_name(text_of(value, key));
  } else if (key == "fold_scales") {
    recipe.fold_scales = fold_scales_from_name(text_of(value, key));
  } else if (key == "input_scales") {
    recipe.input_scales = input_scales_from_name(text_of(value, key));
  } else if (key == "kv_cache") {
    recipe.kv_cache = kv_cache_from_name(text_of(value, key));
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
  } else if (key == "jax_model") {
    recipe.jax_model = text_of(value, key);
  } else if (key == "scale_type") {
    recipe.scale_type = scale_type_from_name(text_of(value, key));
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
  const bool takes_candidate =
      root.find("scheme") == nullptr && root.find("target_schemes") != nullptr;
  if (takes_candidate) {
    take_first_candidate(changed);
  }
  if ((takes_candidate || root.find("scheme") != nullptr) && root.find("layout") == nullptr) {
    changed.layout = default_layout(changed.scheme);
  }
  if (root.find("scheme") == nullptr && changed.layout == Layout::kQwix) {
    changed.scheme = Scheme::kSource;
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
                    choice_name(std::nullopt)));
  }
  return {text.substr(0, equals), choice_from_name(text.substr(equals + 1))};
}

namespace {

JsonValue rules_json(const std::vector<SchemeRule>& rules) {
  JsonValue list;
  list.kind = JsonValue::Kind::kArray;
  for (const SchemeRule& rule : rules) {
    JsonValue item = JsonValue::object();
    item.set("match", JsonValue::string(rule.pattern));
    item.set("scheme", JsonValue::string(choice_name(rule.scheme)));
    list.items.push_back(std::move(item));
  }
  return list;
}

// Nothing of it in recipes without a target, as ever.
void add_target(const Recipe& recipe, JsonValue& root) {
  const SizeTarget& target = recipe.target;
  if (target.bits) {
    root.set("target_bits", JsonValue::number(*target.bits));
  }
  if (target.bytes) {
    root.set("target_size", JsonValue::number(*target.bytes));
  }
  if (target.is_set()) {
    std::vector<std::string> names;
    std::ranges::transform(target_schemes(recipe), std::back_inserter(names), choice_name);
    root.set("target_schemes", JsonValue::array(names));
  }
  if (!recipe.chosen.empty()) {
    JsonValue chosen = JsonValue::object();
    for (const auto& [name, scheme] : recipe.chosen) {
      chosen.keys.push_back(name);
      chosen.items.push_back(JsonValue::string(choice_name(scheme)));
    }
    root.set("chosen", std::move(chosen));
  }
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
  add_target(recipe, root);
  root.set("layout", named(layout_name(recipe.layout)));
  root.set("scaling", named(scaling_name(recipe.scaling)));
  root.set("alphas", numbers(recipe.alphas));
  root.set("betas", numbers(recipe.betas));
  root.set("objective", named(objective_name(recipe.objective)));
  root.set("scale_rule", named(scale_rule_name(recipe.scale_rule)));
  root.set("rounding", named(rounding_name(recipe.rounding)));
  root.set("fold_scales", named(fold_scales_name(recipe.fold_scales)));
  root.set("input_scales", named(input_scales_name(recipe.input_scales)));
  root.set("kv_cache", named(kv_cache_name(recipe.kv_cache)));
  root.set("min_tokens", JsonValue::number(recipe.min_tokens));
  root.set("keep", JsonValue::array(recipe.keep));
  root.set("include", JsonValue::array(recipe.include));
  root.set("compat", named(compat_name(recipe.compat)));
  root.set("architecture", JsonValue::string(recipe.architecture));
  if (recipe.layout == Layout::kQwix) {
    root.set("jax_model", JsonValue::string(recipe.jax_model));
    root.set("scale_type", named(scale_type_name(recipe.scale_type)));
  }
  root.set("allow_unknown", JsonValue::boolean(recipe.allow_unknown));
  root.set("untie", JsonValue::boolean(recipe.untie));
  root.set("max_shard_size", JsonValue::number(recipe.max_shard_bytes));
  return print_json(root);
}

}  // namespace quantmill
