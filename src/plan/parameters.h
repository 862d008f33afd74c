#pragma once

// The values of an architecture ("hidden", "heads", "layer_types") read from config.json.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/expression.h"
#include "plan/json_text.h"

namespace quantmill {

// How one parameter is found.
struct ParameterSpec {
  std::string name;
  Value::Kind kind = Value::Kind::kNumber;
  // Dotted paths into config.json; the first that exists and is not null counts. A step "*" is any
  // member, the first that has the rest.
  std::vector<std::string> config_keys;
  bool count = false;     // the length of the list there, rather than a number
  std::string fallback;   // expression over the parameters before it, for a config.json without it
  bool optional = false;  // may be missing: then no expression may use it
};

struct Parameter {
  std::optional<Value> value;
  std::string why_missing;  // if it has none: no error until an expression needs it
};

using Parameters = std::map<std::string, Parameter>;

// Keys are looked for in the sections (objects of config.json that are there), then at its top.
// Errors, kInput: a parameter that config.json lacks (names its keys), one of another kind than
// stated (a number is a non-negative integer, or true or false), a fallback that can't be
// evaluated is no error until the parameter is used: a family may inherit one that it has no use
// for.
Parameters read_parameters(const std::vector<ParameterSpec>& specs,
                           const JsonValue& config,
                           const std::vector<std::string>& sections);

// The value of a parameter; kInput if there is none of this name or it has none.
Value parameter_value(const Parameters& parameters, const std::string& name);

}  // namespace quantmill
