#pragma once

// The numbers of an architecture ("hidden", "heads") read from config.json, and the expressions
// over them that state shapes and counts.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/json_text.h"

namespace quantmill {

// How one parameter is found.
struct ParameterSpec {
  std::string name;
  std::vector<std::string>
      config_keys;        // dotted paths into config.json; the first that exists counts
  bool count = false;     // the length of the list there, rather than a number
  std::string fallback;   // expression over the parameters before it, for a config.json without it
  bool optional = false;  // may be missing: then no expression may use it
};

// Name -> value; nothing for an optional one that config.json lacks.
using Parameters = std::map<std::string, std::optional<std::uint64_t>>;

// Errors, kInput: a parameter that config.json lacks (names its keys), one that is no non-negative
// integer or no list, a fallback that can't be evaluated.
Parameters read_parameters(const std::vector<ParameterSpec>& specs, const JsonValue& config);

// Names and integers joined by * and /, from left to right: "2 * taps * hidden / conv_group".
// Errors, kInput: a syntax error, an unknown name or one without a value, a division with a rest or
// by 0, overflow.
std::uint64_t evaluate(const std::string& expression, const Parameters& parameters);

}  // namespace quantmill
