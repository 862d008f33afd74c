#pragma once

// From --target-bits or --target-size to a scheme for every tensor: an error table that is read or
// measured, and the choice by it.

#include <cstdint>
#include <optional>
#include <vector>

#include "base/log.h"
#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/error_table.h"
#include "pipeline/run.h"
#include "pipeline/team.h"
#include "plan/target.h"
#include "stats/statistics.h"

namespace quantmill {

// The options' recipe with schemes for all tensors, and the plan of that.
struct TargetChoice {
  Recipe recipe;
  Plan plan;
};

// With the smallest schemes: what a target within reach takes at least, and what is wrong with the
// job whatever is chosen. Errors: as make_job_plan.
TargetChoice smallest_choice(const Checkpoint& checkpoint,
                             const Statistics& statistics,
                             const JobOptions& options,
                             const TargetProblem& problem);

// Bytes that linears may take, by a first estimate where the target is of the whole output.
// `smallest_output_bytes`: of the smallest choice's plan. kUsage, with the reachable range, for a
// target outside it.
std::uint64_t target_budget(const TargetProblem& problem, std::uint64_t smallest_output_bytes);

// The table in --error-table; nothing if that is not given or not there. Errors: as
// parse_error_table and check_error_table. kIo.
std::optional<ErrorTable> stored_error_table(const Checkpoint& checkpoint,
                                             const Statistics& statistics,
                                             const JobOptions& options,
                                             const TargetProblem& problem);

// Measures, and writes the table to --error-table if that is given. Collective over team.world.
// Errors: as measure_error_table; kUsage: --memory is too little; kIo.
ErrorTable make_error_table(const Team& team,
                            const Context& context,
                            const Checkpoint& checkpoint,
                            const Statistics& statistics,
                            const JobOptions& options,
                            const TargetProblem& problem);

// The schemes that make the sum of losses (losses_of) least within the target: what is written is
// never larger. `budget`: target_budget.
TargetChoice choose_for_target(const Checkpoint& checkpoint,
                               const Statistics& statistics,
                               const JobOptions& options,
                               const TargetProblem& problem,
                               const ErrorTable& table,
                               std::uint64_t budget);

// By tensor of the architecture, for Plan::target_errors: the root of the relative error, as
// reports tell errors, of what a recipe chose.
std::vector<std::optional<double>> chosen_errors(const Plan& plan, const ErrorTable& table);

// All of that for a job that awaits_choice: what an earlier run of it chose, noted in its work
// folder, or a choice by a stored or measured table, which is noted there. Collective over
// team.world; every rank gets the same.
TargetChoice settle_schemes(const Team& team,
                            const Context& context,
                            const Log& log,
                            const Checkpoint& checkpoint,
                            const Statistics& statistics,
                            const JobOptions& options,
                            const TargetProblem& problem,
                            std::uint64_t budget);

}  // namespace quantmill
