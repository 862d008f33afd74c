#pragma once

// Which tensors are quantized. Private to the plan module.

#include <vector>

#include "plan/architecture.h"
#include "plan/recipe.h"

namespace quantmill {

// One flag per tensor of the architecture. Errors, kUsage: a pattern of --keep that matches
// nothing, a part of --include that the model lacks, tensors that are one module in servers or one
// stored tensor and would be mixed (names the pair), nothing left to quantize.
std::vector<bool> choose_quantized(const ResolvedArchitecture& architecture, const Recipe& recipe);

}  // namespace quantmill
