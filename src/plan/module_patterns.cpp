#include "plan/module_patterns.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/pattern.h"

namespace quantmill {

namespace {

// `name` with all of its whole-part numbers but the first `kept` as "#": "layers.3.mlp.experts.17"
// -> "layers.3.mlp.experts.#" for 1. Digits beside letters ("w1") are no numbers.
std::string with_numbers(std::string_view name, std::size_t kept) {
  std::string pattern;
  std::size_t numbers = 0;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    numbers += is_number(part) ? 1U : 0U;
    pattern += is_number(part) && numbers > kept ? "#" : part;
    pattern += end < name.size() ? "." : "";
    begin = end + 1;
  }
  return pattern;
}

std::string_view without_prefix(std::string_view name, const std::vector<std::string>& prefixes) {
  std::size_t longest = 0;
  for (const std::string& prefix : prefixes) {
    if (name.starts_with(prefix)) {
      longest = std::max(longest, prefix.size());
    }
  }
  return name.substr(longest);
}

// A name that servers look up, without its prefix, and the scheme that they must find.
struct Lookup {
  std::string name;
  Scheme scheme = Scheme::kMxfp4;
};

// The schemes of all names that each pattern matches.
class PatternSchemes {
 public:
  explicit PatternSchemes(const std::vector<Lookup>& lookups) {
    for (const Lookup& lookup : lookups) {
      std::string shorter;
      for (std::size_t kept = 0;; ++kept) {
        const std::string pattern = with_numbers(lookup.name, kept);
        if (kept > 0 && pattern == shorter) {
          break;
        }
        add_ends(pattern, lookup.scheme);
        shorter = pattern;
      }
    }
  }

  // The pattern with the fewest numbers that no name of another scheme matches.
  [[nodiscard]] std::string shortest(const Lookup& lookup) const {
    for (std::size_t kept = 0;; ++kept) {
      std::string pattern = with_numbers(lookup.name, kept);
      if (std::has_single_bit(schemes_.at(pattern))) {
        return pattern;
      }
      if (pattern == lookup.name) {
        throw Error(ErrorCode::kInput,
                    fmt::format("{}: servers' configs can't tell it from another module whose "
                                "name ends in the same way and whose scheme is not {}; give both "
                                "the same scheme",
                                lookup.name,
                                scheme_name(lookup.scheme)));
      }
    }
  }

 private:
  // Configs match the ends of names, so a name is matched by its own ends too.
  void add_ends(const std::string& pattern, Scheme scheme) {
    for (std::size_t begin = 0; begin != std::string::npos;) {
      schemes_[pattern.substr(begin)] |= std::uint64_t{1} << static_cast<unsigned>(scheme);
      const std::size_t dot = pattern.find('.', begin);
      begin = dot == std::string::npos ? dot : dot + 1;
    }
  }

  std::unordered_map<std::string, std::uint64_t> schemes_;  // a bit for each
};

}  // namespace

std::string without_numbers(std::string_view name) {
  return with_numbers(name, 0);
}

std::vector<SchemeModules> modules_by_scheme(const std::vector<QuantizedModule>& modules,
                                             Scheme first,
                                             const std::vector<std::string>& prefixes,
                                             std::optional<std::uint64_t> server_layer_offset) {
  if (modules.empty()) {
    return {{first, {}}};
  }
  const bool has_first =
      std::ranges::any_of(modules, [&](const auto& module) { return module.scheme == first; });
  const Scheme base = has_first ? first : modules.front().scheme;
  if (std::ranges::all_of(modules, [&](const auto& module) { return module.scheme == base; })) {
    return {{base, {}}};
  }
  std::vector<Lookup> lookups;
  for (const QuantizedModule& module : modules) {
    lookups.push_back({std::string(without_prefix(module.name, prefixes)), module.scheme});
    if (!module.fused_group.empty()) {
      lookups.push_back({module.fused_group, module.scheme});
    }
  }
  const PatternSchemes known(lookups);
  std::map<Scheme, std::set<std::string>> patterns;
  for (const Lookup& lookup : lookups) {
    if (lookup.scheme == base) {
      continue;
    }
    const std::string pattern = known.shortest(lookup);
    if (pattern != without_numbers(pattern) && server_layer_offset.value_or(1) != 0) {
      throw Error(ErrorCode::kInput,
                  fmt::format("{} has scheme {} in some layers only, but servers number the layers "
                              "of this model otherwise than the checkpoint does; give it one "
                              "scheme in all layers",
                              lookup.name,
                              scheme_name(lookup.scheme)));
    }
    patterns[lookup.scheme].insert(pattern);
  }
  std::vector<SchemeModules> result = {{base, {}}};
  for (const auto& [scheme, names] : patterns) {
    result.push_back({scheme, {names.begin(), names.end()}});
  }
  return result;
}

std::string as_regular_expression(const std::string& pattern) {
  return fmt::format("re:(.*\\.)?{}$", replace_all(replace_all(pattern, ".", "\\."), "#", "\\d+"));
}

std::string as_glob(const std::string& pattern) {
  return fmt::format("*{}", replace_all(pattern, "#", "*"));
}

}  // namespace quantmill
