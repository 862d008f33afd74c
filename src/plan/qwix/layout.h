#pragma once

// Layout qwix: a checkpoint that Qwix loads without changing anything. Private to the plan module.

#include <string>

#include "plan/plan.h"

namespace quantmill {

// Gives every work of the plan its places among the parameters of the recipe's JAX model, and the
// plan its shards, its parameters and the files beside them. Works without a parameter are taken
// out. Shards are filled up to Recipe::max_shard_bytes, or 4 GiB. Errors, kInput: what
// find_jax_parameters refuses; weights of one parameter that are quantized differently; a stated
// block that does not fit (says which is the largest that does); scales that the parameter's axes
// can't hold.
void place_qwix(const Checkpoint& checkpoint, const std::string& config_json, Plan& plan);

}  // namespace quantmill
