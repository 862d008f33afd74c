#pragma once

// Reads the entries of an architecture file, one at a time: JSON -> TensorSpec, ActivationSpec,
// ParameterSpec. Private to the parser of the file.

#include <string>

#include "plan/architecture_file.h"
#include "plan/json_text.h"
#include "plan/parameters.h"

namespace quantmill {

// Errors, kInput, naming the entry: an unknown, missing or ill-typed key, keys that contradict each
// other.
ParameterSpec read_parameter_spec(const std::string& name, const JsonValue& value);
TensorSpec read_tensor_spec(const JsonValue& value);
ActivationSpec read_activation_spec(const JsonValue& value);

}  // namespace quantmill
