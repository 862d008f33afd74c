#pragma once

// From the scales of fold groups to what is done to each tensor.

#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "plan/plan.h"
#include "stats/scales.h"

namespace quantmill {

// Of one activation; all empty if it is not scaled.
struct ActivationFold {
  std::vector<float> s;            // one per channel: readers are multiplied, producers divided
  std::vector<float> norm_weight;  // of a norm that is its producer: exact in the stored type
};

// One per activation of the architecture.
// A norm is rounded to its stored type first; its readers are multiplied by what it was really
// divided by, so the stored fold is exact for the reader's first activation. (A reader of several
// activations, like k_proj and v_proj of a DFlash drafter, is exact for the first and within the
// stored type's rounding for the others; with powers of two for all.) With Compat::kSeed readers
// are multiplied by s itself, as the script does. Errors: kInput: scales of another model (names
// the group); what reading the norms refuses.
std::vector<ActivationFold> make_fold_table(const Context& context,
                                            const Checkpoint& checkpoint,
                                            const Plan& plan,
                                            const ScaleTable& scales);

// What a tensor of the architecture is scaled by: a linear [out, in] has one factor per in feature
// and one divisor per out feature, a vector one divisor per element. Empty where nothing is done.
struct TensorFactors {
  std::vector<float> columns;
  std::vector<float> row_divisors;
};

TensorFactors factors_of(const Plan& plan,
                         const std::vector<ActivationFold>& folds,
                         std::size_t tensor);

// A whole tensor as float (norms, biases). kInput naming it if it has NaN or infinity.
std::vector<float> read_floats(const Context& context,
                               const Checkpoint& checkpoint,
                               const ResolvedArchitecture& architecture,
                               const ModelTensor& tensor);

}  // namespace quantmill
