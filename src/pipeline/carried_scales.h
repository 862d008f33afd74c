#pragma once

// Scales of whole tensors that are carried over with a source's codes.

#include <vector>

#include "checkpoint/reader.h"
#include "pipeline/team.h"
#include "plan/plan.h"

namespace quantmill {

// One value per Plan::tensors: the scale of the whole tensor as the scheme stores it, where codes
// are carried over with one; 0 where they are not. What servers fuse has one scale: unless all
// tensors of such a set have codes with the same one, none is carried over. Collective. kIo.
std::vector<float> carried_scales(const Team& team, const Checkpoint& checkpoint, const Plan& plan);

}  // namespace quantmill
