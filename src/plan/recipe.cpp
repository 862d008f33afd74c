#include "plan/recipe.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checked.h"
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

constexpr Names<ScaleType, 2> kScaleTypes{
    {{ScaleType::kSource, "source"}, {ScaleType::kF32, "f32"}}};
constexpr Names<Scaling, 2> kScalings{{{Scaling::kNone, "none"}, {Scaling::kAwqGrid, "awq-grid"}}};
constexpr Names<ScaleRule, 4> kScaleRules{{{ScaleRule::kEven, "even"},
                                           {ScaleRule::kFloor, "floor"},
                                           {ScaleRule::kRceil, "rceil"},
                                           {ScaleRule::kCeil, "ceil"}}};
constexpr Names<FoldScales, 3> kFoldScales{
    {{FoldScales::kExact, "exact"}, {FoldScales::kPow2, "pow2"}, {FoldScales::kOff, "off"}}};
constexpr Names<Compat, 2> kCompats{{{Compat::kNone, "none"}, {Compat::kSeed, "seed"}}};

constexpr std::array<std::string_view, 16> kKeys{"scheme",
                                                 "layout",
                                                 "scaling",
                                                 "alphas",
                                                 "scale_rule",
                                                 "fold_scales",
                                                 "min_tokens",
                                                 "keep",
                                                 "include",
                                                 "compat",
                                                 "architecture",
                                                 "allow_unknown",
                                                 "untie",
                                                 "max_shard_size",
                                                 "jax_model",
                                                 "scale_type"};

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
  } else if (key == "layout") {
    recipe.layout = layout_from_name(text_of(value, key));
  } else if (key == "scaling") {
    recipe.scaling = scaling_from_name(text_of(value, key));
  } else if (key == "alphas") {
    recipe.alphas = alphas_of(value, key);
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

void check_alphas(const std::vector<double>& alphas) {
  if (alphas.empty()) {
    fail("alphas: at least one is wanted; scaling \"none\" switches the search off");
  }
  for (const double alpha : alphas) {
    if (!(alpha >= 0 && alpha <= 1)) {
      fail(fmt::format("alphas: {} is outside 0 to 1", alpha));
    }
  }
}

void check_qwix(const Recipe& recipe) {
  if (recipe.scheme == Scheme::kSource && recipe.scaling != Scaling::kNone) {
    fail("scheme \"source\" carries codes over as they are, so nothing can be scaled: use convert, or "
         "scaling \"none\"; --scheme quantizes anew");
  }
  if (recipe.layout != Layout::kQwix &&
      (!recipe.jax_model.empty() || recipe.scale_type != ScaleType::kSource)) {
    fail(fmt::format("jax_model and scale_type belong to layout \"qwix\", and the layout is \"{}\"",
                     layout_name(recipe.layout)));
  }
}

// What the script does is fixed; any setting that would ask for something else is refused.
void check_seed(const Recipe& recipe) {
  const Recipe fixed;
  if (recipe.scheme != fixed.scheme && !is_floating_point(recipe.scheme)) {
    fail(fmt::format("compat \"seed\" quantizes to mxfp4, not {}", scheme_name(recipe.scheme)));
  }
  if (recipe.layout == Layout::kCompressedTensors) {
    fail("compat \"seed\" writes layout quark");
  }
  const auto refuse = [](std::string_view option, const std::string& value) {
    fail(fmt::format("compat \"seed\" fixes {}, so {} can't be given", option, value));
  };
  if (recipe.scaling != fixed.scaling) {
    refuse("scaling", std::string(scaling_name(recipe.scaling)));
  }
  if (recipe.alphas != fixed.alphas) {
    refuse("alphas", fmt::format("{}", fmt::join(recipe.alphas, ",")));
  }
  if (recipe.fold_scales != fixed.fold_scales) {
    refuse("fold_scales", std::string(fold_scales_name(recipe.fold_scales)));
  }
  if (!recipe.keep.empty()) {
    refuse("keep", fmt::format("{}", fmt::join(recipe.keep, ", ")));
  }
}

constexpr std::string_view kUnits = "KMGT";

// 1 for "" and "B", 1024 for "K", "KB" and "KiB" …; nothing for anything else.
std::optional<std::uint64_t> unit_bytes(std::string_view unit) {
  if (unit.empty() || unit == "B" || unit == "b") {
    return 1;
  }
  const char letter =
      unit.front() >= 'a' ? static_cast<char>(unit.front() - 'a' + 'A') : unit.front();
  const std::size_t power = kUnits.find(letter);
  const std::string_view rest = unit.substr(1);
  if (power == std::string_view::npos ||
      !(rest.empty() || rest == "B" || rest == "b" || rest == "iB" || rest == "ib")) {
    return std::nullopt;
  }
  return std::uint64_t{1} << (10 * (power + 1));
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
  if (root.find("scheme") == nullptr && changed.layout == Layout::kQwix) {
    changed.scheme = Scheme::kSource;
  }
  recipe = std::move(changed);
}

Scheme searched_scheme(const Recipe& recipe) {
  return is_floating_point(recipe.scheme) ? Scheme::kMxfp4 : recipe.scheme;
}

void check_recipe(const Recipe& recipe) {
  check_layout(recipe.scheme, recipe.layout);
  check_alphas(recipe.alphas);
  check_qwix(recipe);
  if (recipe.compat == Compat::kSeed) {
    check_seed(recipe);
  }
}

std::string to_json(const Recipe& recipe) {
  const auto named = [](std::string_view name) { return JsonValue::string(std::string(name)); };
  JsonValue alphas;
  alphas.kind = JsonValue::Kind::kArray;
  for (const double alpha : recipe.alphas) {
    alphas.items.push_back(JsonValue::number(alpha));
  }
  JsonValue root = JsonValue::object();
  root.set("scheme", named(scheme_name(recipe.scheme)));
  root.set("layout", named(layout_name(recipe.layout)));
  root.set("scaling", named(scaling_name(recipe.scaling)));
  root.set("alphas", std::move(alphas));
  root.set("scale_rule", named(scale_rule_name(recipe.scale_rule)));
  root.set("fold_scales", named(fold_scales_name(recipe.fold_scales)));
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

std::string_view scaling_name(Scaling scaling) {
  return name_of(kScalings, scaling);
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

std::string_view scale_type_name(ScaleType type) {
  return name_of(kScaleTypes, type);
}

ScaleType scale_type_from_name(std::string_view name) {
  return value_of(kScaleTypes, "scale_type", name);
}

Scaling scaling_from_name(std::string_view name) {
  return value_of(kScalings, "scaling", name);
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

std::uint64_t parse_size(const std::string& text) {
  const auto refuse = [&text]() {
    fail(
        fmt::format("\"{}\" is no size; write a number of bytes, or one with K, M, G or T (powers "
                    "of 1024) such as "
                    "512M, 4G, 1.5GiB",
                    text));
  };
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::optional<std::uint64_t> unit = unit_bytes(std::string_view(text).substr(digits));
  const char* const begin = text.data();
  const char* const end = begin + digits;
  std::uint64_t whole = 0;
  if (!unit) {
    refuse();
  }
  if (const auto [rest, failure] = std::from_chars(begin, end, whole);
      failure == std::errc() && rest == end) {
    if (const std::optional<std::uint64_t> bytes = checked_multiply(whole, *unit)) {
      return *bytes;
    }
    refuse();
  }
  double value = 0;
  const auto [rest, failure] = std::from_chars(begin, end, value, std::chars_format::fixed);
  const double bytes = std::floor(value * static_cast<double>(*unit));
  // 2^63: half of what fits, so that the conversion is safe whatever is added later.
  if (failure != std::errc() || rest != end || *unit == 1 || !(bytes < 9223372036854775808.0)) {
    refuse();
  }
  return static_cast<std::uint64_t>(bytes);
}

std::string format_size(std::uint64_t bytes) {
  if (bytes < 1024) {
    return fmt::format("{} B", bytes);
  }
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.95 would print as 1024.0.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}iB", value, kUnits[unit]);
}

}  // namespace quantmill
