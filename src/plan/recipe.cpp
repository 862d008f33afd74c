#include "plan/recipe.h"

#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace quantmill {

namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kUsage, message);
}

constexpr std::string_view kKeep = "keep";  // in place of a scheme

// The values of an option with their names, in the order in which messages list them.
template <typename Value, std::size_t kCount>
using Names = std::array<std::pair<Value, std::string_view>, kCount>;

constexpr Names<ScaleType, 2> kScaleTypes{
    {{ScaleType::kSource, "source"}, {ScaleType::kF32, "f32"}}};
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
constexpr Names<Rounding, 2> kRoundings{
    {{Rounding::kNearest, "nearest"}, {Rounding::kGptq, "gptq"}}};
constexpr Names<FoldScales, 3> kFoldScales{
    {{FoldScales::kExact, "exact"}, {FoldScales::kPow2, "pow2"}, {FoldScales::kOff, "off"}}};
constexpr Names<InputScales, 3> kInputScales{
    {{InputScales::kAuto, "auto"}, {InputScales::kStatic, "static"}, {InputScales::kNone, "none"}}};
constexpr Names<KvCache, 2> kKvCaches{{{KvCache::kNone, "none"}, {KvCache::kFp8, "fp8"}}};
constexpr Names<Compat, 2> kCompats{{{Compat::kNone, "none"}, {Compat::kSeed, "seed"}}};

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

}  // namespace

std::string choice_name(std::optional<Scheme> scheme) {
  return std::string(scheme ? scheme_name(*scheme) : kKeep);
}

std::optional<Scheme> choice_from_name(std::string_view name) {
  return name == kKeep ? std::nullopt : std::optional(scheme_from_name(name));
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

std::string_view rounding_name(Rounding rounding) {
  return name_of(kRoundings, rounding);
}

std::string_view fold_scales_name(FoldScales mode) {
  return name_of(kFoldScales, mode);
}

std::string_view input_scales_name(InputScales scales) {
  return name_of(kInputScales, scales);
}

std::string_view kv_cache_name(KvCache kv_cache) {
  return name_of(kKvCaches, kv_cache);
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

Objective objective_from_name(std::string_view name) {
  return value_of(kObjectives, "objective", name);
}

ScaleRule scale_rule_from_name(std::string_view name) {
  return value_of(kScaleRules, "scale_rule", name);
}

Rounding rounding_from_name(std::string_view name) {
  return value_of(kRoundings, "rounding", name);
}

FoldScales fold_scales_from_name(std::string_view name) {
  return value_of(kFoldScales, "fold_scales", name);
}

InputScales input_scales_from_name(std::string_view name) {
  return value_of(kInputScales, "input_scales", name);
}

KvCache kv_cache_from_name(std::string_view name) {
  return value_of(kKvCaches, "kv_cache", name);
}

Compat compat_from_name(std::string_view name) {
  return value_of(kCompats, "compat", name);
}

}  // namespace quantmill
