#pragma once

// Chooses the scales of fold groups: the candidate whose quantization error, weighted by
// activations, is least.

#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/journal.h"
#include "pipeline/team.h"
#include "plan/column_importance.h"
#include "plan/plan.h"
#include "stats/scales.h"
#include "stats/statistics.h"

namespace quantmill {

// Every fold group gets an entry; those that the plan does not search are neutral, with the plan's
// reason. For a searched group: candidates of channel_scales (tried_exponents) from its pooled mean
// |x| and the root mean square of its readers' columns; the error of each is the sum over its plan
// tasks (mx_error_curve, weighted by `importance`; with Compat::kSeed by mean |x|), in task order,
// so the choice does not depend on who computed what. With Objective::kW4A4 the expected error of
// rounding its activations is added (ActivationNoise), computed on rank 0. The least error wins,
// the earliest candidate on a tie. Collective over team.world; every rank gets the same table.
// Errors, kInput: NaN or infinity in a weight (tensor, row, column).
ScaleTable search_scales(const Team& team,
                         const Context& context,
                         const Checkpoint& checkpoint,
                         const Plan& plan,
                         const Statistics& statistics,
                         const ColumnImportance& importance,
                         JobJournal& journal);

// A table in which every group is neutral, with the plan's reason.
ScaleTable neutral_scales(const Plan& plan);

}  // namespace quantmill
