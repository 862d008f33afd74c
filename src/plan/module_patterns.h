#pragma once

// Modules of a checkpoint by the scheme that they have, in as few names as servers' configs can
// tell them apart by.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/architecture.h"
#include "plan/scheme.h"

namespace quantmill {

// A linear that is written quantized.
struct QuantizedModule {
  std::string name;         // in the checkpoint, without ".weight"
  std::string fused_group;  // ModelTensor::fused_group, after the prefix of `name`
  Scheme scheme = Scheme::kMxfp4;
};

// Modules of one scheme. Patterns are ends of module names, from the start of one of their parts
// on; "#" is any number: "layers.#.mlp.down_proj".
struct SchemeModules {
  Scheme scheme = Scheme::kMxfp4;
  std::vector<std::string> patterns;  // sorted; none: all that no other scheme's patterns match
};

// The scheme `first` (or, if no module has it, the first module's) without patterns, then the other
// schemes. A pattern matches no module of another scheme, fused ones as little as their parts; it
// has numbers only if it must. `prefixes` (of names, as ResolvedArchitecture::prefixes) are left
// out of patterns. Errors, kInput: a pattern must have numbers, but servers number layers otherwise
// (`server_layer_offset` is not 0, or unknown).
std::vector<SchemeModules> modules_by_scheme(const std::vector<QuantizedModule>& modules,
                                             Scheme first,
                                             const std::vector<std::string>& prefixes,
                                             std::optional<std::uint64_t> server_layer_offset);

// A name with "#" for each of its numbers.
std::string without_numbers(std::string_view name);

// A pattern as compressed-tensors' configs spell it ("re:…"), and as Quark's do (a glob).
std::string as_regular_expression(const std::string& pattern);
std::string as_glob(const std::string& pattern);

}  // namespace quantmill
