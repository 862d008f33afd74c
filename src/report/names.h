#pragma once

// What names of tensors and fold groups say.

#include <cstdint>
#include <optional>
#include <string>

namespace quantmill {

// The first part of a dotted name that is a number: 3 of "model.layers.3.mlp.experts.17.up_proj".
std::optional<std::uint64_t> layer_of(const std::string& name);

// What it is in any layer, without numbers, "weight" and slices: "mlp.experts.up_proj"; of a name
// without a layer the whole.
std::string kind_of(const std::string& name);

// With "#" for the second number: "layers.3.experts.#.down"; empty without one. Groups that differ
// by it alone are experts of one layer.
std::string without_expert(const std::string& name);

}  // namespace quantmill
