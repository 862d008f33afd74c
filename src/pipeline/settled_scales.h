#pragma once

// The scales of a job, from wherever its options say, and what its columns weigh.

#include "base/log.h"
#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/journal.h"
#include "pipeline/run.h"
#include "pipeline/team.h"
#include "plan/column_importance.h"
#include "plan/plan.h"
#include "stats/scales.h"
#include "stats/statistics.h"

namespace quantmill {

struct JobScales {
  ScaleTable scales;
  ColumnImportance importance;  // refers to the plan's architecture
};

// The scales that an earlier run of the job stored in its work folder; otherwise given, searched or
// neutral, as the options say, and stored now, with `inputs`, and with the importance if the
// recipe's scale rule goes by it. Importance is of the statistics, or of the file that scales are
// given by. Collective over team.world; every rank gets the same. Errors: what reading such files
// and the search refuse.
JobScales settle_scales(const Team& team,
                        const Context& context,
                        const Checkpoint& checkpoint,
                        const Plan& plan,
                        const Statistics& statistics,
                        const InputMaxima& inputs,
                        const JobOptions& options,
                        JobJournal& journal);

}  // namespace quantmill
