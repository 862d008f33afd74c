#pragma once

// Candidate scales of activation-aware weight quantization (AWQ: Lin et al., arXiv:2306.00978,
// section 3.2).

#include <span>
#include <vector>

namespace quantmill {

// One candidate per alpha: a_j = max(absmean_j, 1e-8), s_j = clamp((a_j / mean(a))^alpha, 0.01,
// 100), divided by the geometric mean of s. In double, rounded to float once; alpha 0 gives
// exactly 1. With `power_of_two` each s_j is then replaced by the nearest power of two (in log2,
// ties to the even exponent). The last bit can depend on the C library: a job computes candidates
// on one rank and sends them to the others.
std::vector<std::vector<float>> awq_candidates(std::span<const double> absmean,
                                               std::span<const double> alphas,
                                               bool power_of_two);

}  // namespace quantmill
