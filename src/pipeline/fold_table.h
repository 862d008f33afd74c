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
  std::vector<float> column_factors;  // one per column of its readers
  std::vector<float> row_divisors;    // one per row of its producer
  std::vector<float>
      norm_weight;  // its producer's new weight, if that is a norm, exact in the stored type
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

// A whole tensor as float (norms, biases). kInput naming it if it has NaN or infinity.
std::vector<float> read_floats(const Context& context,
                               const Checkpoint& checkpoint,
                               std::size_t tensor);

}  // namespace quantmill
