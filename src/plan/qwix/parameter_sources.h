#pragma once

// The weights of one parameter put together. Private to jax_parameters.cpp.

#include <cstddef>
#include <string>
#include <vector>

#include "plan/qwix/jax_model.h"
#include "plan/qwix/jax_parameters.h"

namespace quantmill {

// The axis that counts a rule's "from".
inline const std::string kPartAxis = "part";

// The rule's axes, or as many as the weight has, unchanged.
AxisPattern axes_of(const JaxRule& rule, std::size_t dimensions);

// Sets the sizes of a parameter's axes and the places of its sources, all of which are there.
// kInput: a weight of the group that is missing, two that take the same place, sizes that differ.
void complete_parameter(const JaxRule& rule,
                        const std::vector<SourceWeight>& weights,
                        JaxParameter& parameter);

}  // namespace quantmill
