#pragma once

// What a job says in the log of its plan and of the scales that it chose.

#include <vector>

#include "base/log.h"
#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/fold_table.h"
#include "pipeline/team.h"
#include "plan/plan.h"
#include "stats/scales.h"

namespace quantmill {

// Notices, sizes, ranks and threads.
void log_plan(const Team& team, const Context& context, const Log& log, const Plan& plan);

// Every fold group's, for --verbose.
void log_scales(const Log& log, const Plan& plan, const ScaleTable& scales);

// The script folds what may not be folded: the leader says so, with the number. Collective over
// team.world.
void warn_of_changed_function(const Team& team,
                              const Context& context,
                              const Log& log,
                              const Checkpoint& checkpoint,
                              const Plan& plan,
                              const ScaleTable& scales,
                              const std::vector<ActivationFold>& folds);

}  // namespace quantmill
