#pragma once

// Into how many parts servers can split a quantized checkpoint: weights are cut between blocks that
// share a scale only.

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace quantmill {

// Which quantized weights can't be served by any number of ranks, one line for each kind of them:
// servers stack what they fuse (q, k and v), and take the scales of all but the last to be those
// of whole blocks of rows (vLLM 0.32 refuses others in two layouts, and misplaces scales in the
// third).
std::vector<std::string> fusion_problems(const Plan& plan);

// Adds them to the plan's notices.
void note_fusion_problems(Plan& plan);

// Why `ranks` servers can't share the quantized weights of a plan, one line for each kind of them;
// empty: they can. Readers of an activation that is split over ranks are cut by columns, what the
// architecture calls replicated is not cut, all else is cut by rows. Fusion problems are among
// them.
std::vector<std::string> tensor_parallel_problems(const Plan& plan, std::uint64_t ranks);

// The powers of two up to 64 without problems.
std::vector<std::uint64_t> tensor_parallel_degrees(const Plan& plan);

// kInput, with the problems and the degrees that are possible, if `ranks` has problems.
void check_tensor_parallel(const Plan& plan, std::uint64_t ranks);

}  // namespace quantmill
