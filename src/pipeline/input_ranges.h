#pragma once

// The largest |x| that each weight reads, and that a layer's cache holds, once scales are folded:
// what scales of activations and of the key-value cache are made from.

#include <vector>

#include "pipeline/fold_table.h"
#include "plan/plan.h"
#include "plan/tensor_scales.h"

namespace quantmill {

// One value per Plan::tensors: max |x| / s over what a quantized weight reads, in double, then
// rounded to float; where nothing is known, the largest of its peers (decide_input_scales). Of a
// kKvScale the same over what is cached. 0 for other tensors, and without maxima. kInput: maxima of
// another model (names the activation).
std::vector<float> largest_inputs(const Plan& plan,
                                  const std::vector<ActivationFold>& folds,
                                  const InputMaxima& maxima);

}  // namespace quantmill
