#pragma once

// Candidate scales of activation-aware weight quantization (AWQ: Lin et al., arXiv:2306.00978,
// section 3.2), with the weights' magnitude in the denominator (as in llm-compressor's "duo
// scaling").

#include <span>
#include <vector>

namespace quantmill {

// s = |x|^alpha / |w|^beta. 0, 0 is no scaling. 1/2, 1/2 is the closed form that minimizes
// sum(x^2 / s^2) * sum(w^2 s^2), the error of rounding weights and activations in proportion to
// themselves.
struct ScaleExponents {
  double alpha = 0;
  double beta = 0;

  friend bool operator==(const ScaleExponents&, const ScaleExponents&) = default;
};

// a_j = max(absmean_j, 1e-8), w_j = max(weight_rms_j, 1e-8), each divided by its mean over
// channels; s_j = clamp(a_j^alpha / w_j^beta, 0.01, 100), divided by the geometric mean of s. In
// double, rounded to float once; 0, 0 gives exactly 1. weight_rms may be empty if beta is 0. With
// `power_of_two` each s_j is then replaced by the nearest power of two (in log2, ties to the even
// exponent). The last bit can depend on the C library: a job computes candidates on one rank and
// sends them to the others.
std::vector<float> channel_scales(std::span<const double> absmean,
                                  std::span<const double> weight_rms,
                                  ScaleExponents exponents,
                                  bool power_of_two);

}  // namespace quantmill
