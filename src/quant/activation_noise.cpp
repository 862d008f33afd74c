#include "quant/activation_noise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "base/error.h"
#include "kernels/mx.h"

namespace quantmill {
namespace {

constexpr std::size_t kTokens = 64;
constexpr double kSmallestMean = 1e-8;
constexpr double kLaplaceSquare = 2;  // E[x^2] / E|x|^2

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15U;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

// The middles of kTokens equally likely parts of the normal distribution, by bisection of its
// integral.
std::array<double, kTokens> normal_quantiles() {
  std::array<double, kTokens> quantiles{};
  for (std::size_t i = 0; i < kTokens; ++i) {
    const double wanted = (static_cast<double>(i) + 0.5) / kTokens;
    double low = -8;
    double high = 8;
    for (int step = 0; step < 60; ++step) {
      const double middle = (low + high) / 2;
      (std::erfc(-middle / std::sqrt(2.0)) / 2 < wanted ? low : high) = middle;
    }
    quantiles[i] = (low + high) / 2;
  }
  return quantiles;
}

}  // namespace

ActivationNoise::ActivationNoise(const Context& context,
                                 std::span<const double> absmean,
                                 std::span<const double> sqmean)
    : context_(context), tokens_(kTokens * absmean.size()) {
  const std::array<double, kTokens> quantiles = normal_quantiles();
  std::uint64_t state = 0;
  for (std::size_t channel = 0; channel < absmean.size(); ++channel) {
    const double mean = std::max(absmean[channel], kSmallestMean);
    const double square = sqmean.empty() ? kLaplaceSquare : sqmean[channel] / (mean * mean);
    const double variance = std::log(std::max(square, 1.0));  // of log |x|
    std::array<double, kTokens> order = quantiles;
    for (std::size_t left = kTokens; left > 0; --left) {
      const std::uint64_t random = next_random(state);
      std::swap(order[left - 1], order[random % left]);
      const double magnitude =
          mean * std::exp(std::sqrt(variance) * order[left - 1] - variance / 2);
      tokens_[(left - 1) * absmean.size() + channel] =
          static_cast<float>((random >> 63) == 0 ? magnitude : -magnitude);
    }
  }
}

std::vector<double> ActivationNoise::block_errors(std::span<const float> s,
                                                  std::span<const double> weight_squares) {
  const std::size_t channels = s.size();
  check_invariant(tokens_.size() == kTokens * channels && weight_squares.size() == channels,
                  "scales, weights and statistics of different channels");
  scaled_.resize(tokens_.size());
  for (std::size_t token = 0; token < kTokens; ++token) {
    for (std::size_t channel = 0; channel < channels; ++channel) {
      scaled_[token * channels + channel] = tokens_[token * channels + channel] / s[channel];
    }
  }
  rounded_.resize(tokens_.size());
  std::vector<std::uint8_t> codes(tokens_.size() / 2);
  std::vector<std::uint8_t> exponents(tokens_.size() / kMxBlock);
  mx_quantize(context_, {}, {scaled_.data(), kTokens, channels}, codes, exponents);
  mx_dequantize(
      context_, ElementFormat::kE2m1, codes, exponents, {rounded_.data(), kTokens, channels});
  std::vector<double> squares(channels, 0.0);
  for (std::size_t token = 0; token < kTokens; ++token) {
    for (std::size_t channel = 0; channel < channels; ++channel) {
      const std::size_t at = token * channels + channel;
      const double error = double{rounded_[at]} - double{scaled_[at]};
      squares[channel] += error * error;
    }
  }
  std::vector<double> errors(channels / kMxBlock, 0.0);
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const double scale = s[channel];
    errors[channel / kMxBlock] +=
        squares[channel] / kTokens * scale * scale * weight_squares[channel];
  }
  return errors;
}

}  // namespace quantmill
