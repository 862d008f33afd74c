#include "quant/awq.h"

#include <algorithm>
#include <cmath>

namespace quantmill {
namespace {

constexpr double kSmallestMean = 1e-8;
constexpr double kSmallestScale = 1e-2;
constexpr double kLargestScale = 1e2;

std::vector<float> awq_candidate(std::span<const double> normalized,
                                 double alpha,
                                 bool power_of_two) {
  std::vector<double> scales;
  double log_sum = 0;
  for (const double value : normalized) {
    scales.push_back(std::clamp(std::pow(value, alpha), kSmallestScale, kLargestScale));
    log_sum += std::log(scales.back());
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

}  // namespace

std::vector<std::vector<float>> awq_candidates(std::span<const double> absmean,
                                               std::span<const double> alphas,
                                               bool power_of_two) {
  std::vector<double> normalized;
  double sum = 0;
  for (const double value : absmean) {
    normalized.push_back(std::max(value, kSmallestMean));
    sum += normalized.back();
  }
  const double mean = sum / static_cast<double>(normalized.size());
  for (double& value : normalized) {
    value /= mean;
  }
  std::vector<std::vector<float>> candidates;
  for (const double alpha : alphas) {
    candidates.push_back(awq_candidate(normalized, alpha, power_of_two));
  }
  return candidates;
}

}  // namespace quantmill
