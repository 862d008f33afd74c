#pragma once

// What rounding activations to MXFP4 while serving costs, estimated from statistics: no activation
// is at hand when a checkpoint is quantized.

#include <span>
#include <vector>

#include "device/context.h"

namespace quantmill {

// Draws tokens whose channels have the recorded mean |x| and mean x^2, and measures their rounding.
// The magnitude of a channel is log-normal, the one distribution that both moments determine and
// that has the heavy tails of outlier channels; signs and the order of its quantiles are a fixed
// pseudo-random sequence; channels are independent. Measured on SmolLM2-135M, over candidate
// scales, its logarithm correlates with that of the error of real tokens by 0.95 to 0.99 (except
// where single tokens carry most of a channel).
class ActivationNoise {
 public:
  // sqmean may be empty (not recorded): twice the square of the mean, as for a Laplace
  // distribution. `context` must outlive it.
  ActivationNoise(const Context& context,
                  std::span<const double> absmean,
                  std::span<const double> sqmean);

  // For each block of 32 channels, the mean over tokens of the squared error of the outputs:
  // channel j is divided by s_j, rounded (scale rule even), and meets weights whose squares add up
  // to weight_squares_j before they are multiplied by s_j. The number of channels is a multiple
  // of 32. The last bits can depend on the C library.
  std::vector<double> block_errors(std::span<const float> s,
                                   std::span<const double> weight_squares);

 private:
  const Context& context_;
  std::vector<float> tokens_;  // [tokens, channels]
  std::vector<float> scaled_;
  std::vector<float> rounded_;
};

}  // namespace quantmill
