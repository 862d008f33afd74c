#pragma once

// Scales that stand for more than rows and blocks: of whole weights, which tensors may have to
// share, and of the activations that weights read.

#include <string>
#include <vector>

#include "plan/plan.h"
#include "stats/scales.h"
#include "stats/statistics.h"

namespace quantmill {

// Fills TensorWork::shares_scale_with: works of one tensor of the architecture have one scale, and
// so have tensors of one parent that servers fuse and that read an activation together (q, k and v;
// gate and up of one expert). To be called once no work comes or goes any more: it stores places in
// plan.tensors.
void share_tensor_scales(Plan& plan);

// Makes plan.recipe.input_scales kStatic or kNone. plan.choices are made, match_statistics
// has been called. An input without a record, or that no token reached, takes the
// largest of its peers: the experts of its layer. Errors, kInput: kStatic, and an input has neither
// (named).
void decide_input_scales(const Statistics& statistics, Plan& plan);

// What the plan's scales of activations and of the key-value cache are made from, by the names of
// activations and of cache records; empty if there are none.
InputMaxima input_maxima(const Plan& plan, const Statistics& statistics);

// Tensors of one name but for their numbers other than the first, the layer's.
std::string peer_family(const std::string& name);

}  // namespace quantmill
