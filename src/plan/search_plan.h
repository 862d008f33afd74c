#pragma once

// The part of the plan that decides how scales are searched. Private to the plan module.

#include <vector>

#include "plan/plan.h"
#include "stats/statistics.h"

namespace quantmill {

// Fills plan.groups, plan.search_tasks and notices. quantized[i]: tensor i is what the search
// serves. Errors: kUsage: scaling without statistics; kInput as make_plan says.
void plan_search(const Statistics& statistics, const std::vector<bool>& quantized, Plan& plan);

}  // namespace quantmill
