#pragma once

// The pass before writing: the largest magnitude of each folded weight, for schemes with a scale of
// the whole tensor (has_tensor_scale).

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/fold_table.h"
#include "pipeline/journal.h"
#include "pipeline/team.h"
#include "plan/plan.h"

namespace quantmill {

// Unless the scale that its codes have is carried over.
bool is_measured(const TensorWork& work);

// `carried`: carried_scales, one per Plan::tensors; where above 0 nothing is measured. One value
// per Plan::tensors, the same for tensors that share a scale; 0 where none is needed, and then
// nothing is read. A maximum: the same for any number of ranks. Collective. Errors as
// RowProducer::produce.
std::vector<float> measure_weights(const Team& team,
                                   const Context& context,
                                   const Checkpoint& checkpoint,
                                   const Plan& plan,
                                   const std::vector<ActivationFold>& folds,
                                   std::span<const float> carried,
                                   std::uint64_t buffer_bytes,
                                   JobJournal& journal);

}  // namespace quantmill
