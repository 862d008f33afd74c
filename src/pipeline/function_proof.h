#pragma once

// Whether folding left the model's function as it was: random inputs through every producer and
// reader, before and after.

#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/fold_table.h"
#include "pipeline/team.h"
#include "plan/plan.h"
#include "stats/scales.h"

namespace quantmill {

// One reader of one activation: y = W (g . x) with the source's weight W and producer gain g, y'
// the same with the scales applied to both sides, in double. Values are ||y' - y|| / ||y||.
struct EdgeProof {
  std::string activation;
  std::string reader;
  double exact = 0;   // with s as it was chosen: what the fold does before anything is rounded
  double stored = 0;  // with the producer as stored and the factors as used
};

// A legal fold is the identity up to double rounding; this is far above that and far below any
// wrong one.
inline constexpr double kExactTolerance = 1e-9;
// Two roundings to BF16 (2^-9 each) on a channel, with room for their sum.
inline constexpr double kStoredTolerance = 1.0 / 128;

// Checks `plan` (with what its own architecture believes) against the activations of `truth`, the
// architecture of the model as it runs; both resolved on `source`. Every reader of every activation
// is read once, in row order, in bounded memory. Deterministic. Shared among the ranks and threads
// of a team; every rank gets all proofs. Collective over team.world.
std::vector<EdgeProof> prove_function(const Team& team,
                                      const Context& context,
                                      const Checkpoint& source,
                                      const Plan& plan,
                                      const ScaleTable& scales,
                                      const std::vector<ActivationFold>& folds,
                                      const ResolvedArchitecture& truth);

// The edge with the largest `exact`. kInternal if there is none.
const EdgeProof& worst_edge(const std::vector<EdgeProof>& edges);

}  // namespace quantmill
