#pragma once

// The part of the plan that decides how scales are searched. Private to the plan module.

#include <vector>

#include "plan/plan.h"
#include "stats/statistics.h"

namespace quantmill {

// Which fold groups are searched, and why the others stay unscaled: fills plan.groups and notices.
// The search serves what plan.choices quantizes.
// Errors: kUsage: scaling without statistics; kInput as make_plan says.
void decide_groups(const Statistics& statistics, Plan& plan);

// Fills plan.search_tasks; plan.choices, plan.groups and the shapes in plan.tensors are set.
void cut_search_tasks(const Statistics& statistics, Plan& plan);

}  // namespace quantmill
