#pragma once

// Where output tensors lie. Private to the plan module.

#include "checkpoint/reader.h"
#include "plan/plan.h"

namespace quantmill {

// Fills plan.shards, plan.output_bytes and the parts of plan.tensors.
void place(const Checkpoint& checkpoint, Plan& plan);

}  // namespace quantmill
