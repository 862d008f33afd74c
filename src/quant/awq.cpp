#include "quant/awq.h"

#include <algorithm>
#include <cmath>

namespace quantmill {
namespace {

constexpr double kSmallestMagnitude = 1e-8;
constexpr double kSmallestScale = 1e-2;
constexpr double kLargestScale = 1e2;

// Divided by their mean.
std::vector<double> normalized(std::span<const double> magnitudes) {
  std::vector<double> values;
  double sum = 0;
  for (const double magnitude : magnitudes) {
    values.push_back(std::max(magnitude, kSmallestMagnitude));
    sum += values.back();
  }
  const double mean = sum / static_cast<double>(values.size());
  for (double& value : values) {
    value /= mean;
  }
  return values;
}

}  // namespace

std::vector<float> channel_scales(std::span<const double> absmean,
                                  std::span<const double> weight_rms,
                                  ScaleExponents exponents,
                                  bool power_of_two) {
  std::vector<double> scales = normalized(absmean);
  for (double& scale : scales) {
    scale = std::pow(scale, exponents.alpha);
  }
  if (exponents.beta != 0) {
    const std::vector<double> weights = normalized(weight_rms);
    for (std::size_t channel = 0; channel < scales.size(); ++channel) {
      scales[channel] /= std::pow(weights[channel], exponents.beta);
    }
  }
  double log_sum = 0;
  for (double& scale : scales) {
    scale = std::clamp(scale, kSmallestScale, kLargestScale);
    log_sum += std::log(scale);
  }
  const double geometric_mean = std::exp(log_sum / static_cast<double>(scales.size()));
  std::vector<float> result;
  for (const double scale : scales) {
    const double centred = scale / geometric_mean;
    result.push_back(static_cast<float>(
        power_of_two ? std::ldexp(1.0, static_cast<int>(std::nearbyint(std::log2(centred))))
                     : centred));
  }
  return result;
}

}  // namespace quantmill
