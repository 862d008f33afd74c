#pragma once

// The part of the plan that decides how scales are searched. Private to the plan module.

#include <vector>

#include "plan/plan.h"
#include "stats/statistics.h"

namespace quantmill {

// Which fold groups are searched, and why the others stay unscaled: fills plan.groups and notices.
// quantized[i]: tensor i is what the search serves.
// Errors: kUsage: scaling without statistics; kInput as make_plan says.
void decide_groups(const Statistics& statistics, const std::vector<bool>& quantized, Plan& plan);

// Fills plan.search_tasks; plan.groups and the shapes in plan.tensors are set.
void cut_search_tasks(const Statistics& statistics, const std::vector<bool>& quantized, Plan& plan);

}  // namespace quantmill
