#pragma once

// Which activations must share one s. Rule: a tensor's columns are multiplied by one s, so all
// activations that it reads have the same.

#include <vector>

#include "plan/architecture.h"

namespace quantmill {

// The connected components of activations over their readers, ordered by their first activation. A
// group that holds an activation with a no_fold_reason has it too. Errors, kInput: activations of a
// group that differ in their columns, two activations with the same producer (it would be divided
// twice).
std::vector<FoldGroup> join_activations(const std::vector<Activation>& activations,
                                        const std::vector<ModelTensor>& tensors);

}  // namespace quantmill
