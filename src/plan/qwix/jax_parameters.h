#pragma once

// The parameters of a JAX model that the weights of a checkpoint become: names, shapes and which
// weight goes where. From names and shapes alone; what is quantized, and how, comes after
// (layout.h).

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/qwix/jax_model.h"
#include "plan/source_weights.h"

namespace quantmill {

// An axis of a parameter, and where a source begins on it.
struct SizedAxis {
  std::string name;
  std::uint64_t size = 1;
};

// A weight, or a part of it, in a parameter.
struct ParameterSource {
  std::size_t weight = 0;    // index into ResolvedArchitecture::weights
  std::size_t position = 0;  // which of the rule's "from"
  // Axes of each stored dimension, with the sizes of what is taken.
  std::vector<std::vector<SizedAxis>> dimensions;
  std::optional<std::size_t> taken_dimension;  // of which a part is taken, from here on
  std::uint64_t taken_start = 0;
  std::map<std::string, std::uint64_t> at;  // axis -> where this source begins on it
};

struct JaxParameter {
  std::string name;  // "layers.0.mlp.gate_up_proj.kernel"
  std::vector<ParameterSource> sources;
  std::vector<std::vector<SizedAxis>> dimensions;
  bool opaque = false;
  std::optional<std::uint64_t> block;  // stated in the rule

  [[nodiscard]] std::vector<std::uint64_t> shape() const;
};

struct JaxParameters {
  std::vector<JaxParameter> parameters;  // in order of their first weight
  std::vector<std::size_t> left_out;     // weights
};

// Of the weights that are wanted. `config_json` states what the model's expressions need. Errors,
// kInput: a weight that no rule takes (named, with what to do), a rule whose axes do not fit the
// weight's shape, a group of weights of which one is missing or two take the same place, parameters
// of one name, or one below another.
JaxParameters find_jax_parameters(const JaxModel& model,
                                  const std::string& config_json,
                                  const std::vector<SourceWeight>& weights,
                                  const std::vector<bool>& wanted);

}  // namespace quantmill
