#pragma once

// Names with placeholders, as architecture files write them: "layers.{layer}.mlp.up_proj.weight".

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quantmill {

// Placeholder -> its value.
using Binding = std::vector<std::pair<std::string, std::uint64_t>>;

// The placeholders of a name, each once, in order. kInput: a brace without its partner.
std::vector<std::string> placeholders(std::string_view name);

// The name with its placeholders replaced; those without a value in `binding` stay.
std::string substitute(std::string name, const Binding& binding);

}  // namespace quantmill
