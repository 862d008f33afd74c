#pragma once

// Statistics out of an importance matrix of llama.cpp, which calls weights by names of its own and
// has no mean |x|.

#include <string>
#include <vector>

#include "plan/architecture.h"
#include "stats/imatrix.h"
#include "stats/statistics.h"

namespace quantmill {

struct ImatrixStatistics {
  Statistics statistics;
  std::vector<std::string> missing;  // activations whose readers the imatrix does not have
  std::vector<std::string> unused;   // weights of the imatrix that no activation reads
  std::vector<std::string> alike;    // activations that took the sums of another vector, and which
};

// For every activation that can be recorded, E[x^2] and the tokens of a weight that reads it; where
// only experts do, of all of them, weighted by their tokens. mean |x| is not in an imatrix:
// sqrt(E[x^2] / 2), as of a Laplace distribution; of what channels are in proportion to each other,
// which is all that scales take from it, the square root is what counts. The input of kv_b_proj,
// which llama.cpp does not multiply by a matrix (it keeps k_b and v_b apart and absorbs them),
// takes the sums of attn_v_b. Errors, kInput: an entry of another length than the weight has
// columns, or of another number of experts; no entry that belongs to the model.
ImatrixStatistics imatrix_statistics(const ResolvedArchitecture& architecture,
                                     const Imatrix& imatrix);

}  // namespace quantmill
