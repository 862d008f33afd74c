#pragma once

// The parameters of a plan in layout qwix, for people and programs. Private to the plan module.

#include <string>

#include "plan/plan.h"

namespace quantmill {

// Source weights -> parameter, shape and types, one line each; empty without parameters.
std::string describe_parameters(const Plan& plan);

// A list as JSON text: name, sources, shape, axes, types.
std::string parameters_to_json(const Plan& plan);

}  // namespace quantmill
