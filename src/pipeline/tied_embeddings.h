#pragma once

// Embeddings that config.json calls one tensor and the checkpoint stores twice.

#include "checkpoint/reader.h"
#include "plan/plan.h"

namespace quantmill {

// If the plan drops one of two tied tensors, whether they hold the same bytes: kInput naming both
// and the first byte that differs if not, since one of them would be lost. Reads both. kIo.
void check_tied(const Checkpoint& checkpoint, const Plan& plan);

}  // namespace quantmill
