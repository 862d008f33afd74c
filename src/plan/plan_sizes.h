#pragma once

// What a plan's output takes: by role of the tensors, by weight, and what stays unquantized.

#include <string>

#include "plan/plan.h"

namespace quantmill {

// Lines for people.
std::string describe_plan_sizes(const Plan& plan, const Checkpoint& checkpoint);

// {"bits_per_weight", "by_type": {"before", "after"}, "by_role": {role: {"before", "after",
// "parameters"}}, "kept": [{"why", "tensors", "bytes"}]}
std::string plan_sizes_to_json(const Plan& plan, const Checkpoint& checkpoint);

}  // namespace quantmill
