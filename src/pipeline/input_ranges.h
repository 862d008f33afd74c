#pragma once

// The largest |x| that each weight reads once scales are folded: what scales of activations are
// made from.

#include <vector>

#include "pipeline/fold_table.h"
#include "plan/plan.h"
#include "plan/tensor_scales.h"

namespace quantmill {

// One value per Plan::tensors: max |x| / s over what a quantized weight reads, in double, then
// rounded to float; where nothing is known, the largest of its peers (decide_input_scales). 0 for
// other tensors, all 0 without maxima. kInput: maxima of another model (names the activation).
std::vector<float> largest_inputs(const Plan& plan,
                                  const std::vector<ActivationFold>& folds,
                                  const InputMaxima& maxima);

}  // namespace quantmill
