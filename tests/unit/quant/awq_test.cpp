#include "quant/awq.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"

namespace quantmill {
namespace {

TEST(ChannelScales, AlphaZeroIsExactlyNeutral) {
  const std::vector<double> absmean = {0.1, 3.0, 0.7};
  EXPECT_THAT(channel_scales(absmean, {}, {0.0, 0}, false), testing::Each(1.0F));
}

TEST(ChannelScales, AlphaOneIsProportionalToTheMeanWithGeometricMeanOne) {
  // mean 4: normalized 0.5, 0.5, 2, geometric mean 0.5^(1/3).
  const std::vector<double> absmean = {2.0, 2.0, 8.0};
  const std::vector<float> s = channel_scales(absmean, {}, {1.0, 0}, false);
  const double centre = std::cbrt(0.5 * 0.5 * 2.0);
  EXPECT_FLOAT_EQ(s[0], static_cast<float>(0.5 / centre));
  EXPECT_FLOAT_EQ(s[2], static_cast<float>(2.0 / centre));
}

TEST(ChannelScales, AChannelWithoutActivationIsClampedNotInfinite) {
  const std::vector<double> absmean = {0.0, 1.0};
  const std::vector<float> s = channel_scales(absmean, {}, {1.0, 0}, false);
  // 1e-8 / 0.5 is below the clamp 0.01; 1 / 0.5 = 2: geometric mean sqrt(0.02).
  EXPECT_FLOAT_EQ(s[0], static_cast<float>(0.01 / std::sqrt(0.02)));
}

TEST(ChannelScales, BalanceIsTheRootOfActivationsOverWeights) {
  // Means 2 and 2.5: a 1/2, 3/2; w 8/5, 2/5; s^2 5/16, 15/4, geometric mean of s (75/64)^(1/4).
  const std::vector<double> absmean = {1, 3};
  const std::vector<double> weights = {4, 1};
  const std::vector<float> s = channel_scales(absmean, weights, {0.5, 0.5}, false);
  const double centre = std::pow(75.0 / 64, 0.25);
  EXPECT_FLOAT_EQ(s[0], static_cast<float>(std::sqrt(5.0 / 16) / centre));
  EXPECT_FLOAT_EQ(s[1], static_cast<float>(std::sqrt(15.0 / 4) / centre));
  EXPECT_THAT(channel_scales(absmean, weights, {0, 0}, false), testing::Each(1.0F));
}

TEST(ChannelScales, AColumnWithoutWeightsIsClampedNotInfinite) {
  const std::vector<double> absmean = {1, 1};
  const std::vector<double> weights = {0, 1};
  const std::vector<float> s = channel_scales(absmean, weights, {0, 1}, false);
  // 0.5 / 1e-8 is above the clamp 100; 1 / 2: geometric mean sqrt(50).
  EXPECT_FLOAT_EQ(s[0], static_cast<float>(100 / std::sqrt(50.0)));
}

TEST(ChannelScales, PowersOfTwoOnRequest) {
  const std::vector<double> absmean = {0.3, 5.0, 1.1, 0.02, 40.0};
  for (const float s : channel_scales(absmean, {}, {0.7, 0}, true)) {
    int exponent = 0;
    EXPECT_EQ(std::frexp(s, &exponent), 0.5F) << s;
  }
}

// The s that the script computes with torch in float, from the same statistics: ours is computed in
// double, so at most a few units in the last place away.
TEST(ChannelScales, AgreesWithTorchWithinThreeUnitsInTheLastPlace) {
  std::ifstream groups_file(test::golden("seed/as-written/groups.json"));
  const auto groups = nlohmann::json::parse(groups_file);
  std::ifstream statistics_file(test::golden("dflash2-tiny/calib/expected_f64.json"));
  const auto statistics = nlohmann::json::parse(statistics_file);
  std::vector<double> absmean;
  for (const double value : statistics["layers.0.mlp.down_proj"]["absmean"]) {
    absmean.push_back(static_cast<float>(value));
  }
  std::vector<double> alphas;
  for (int i = 0; i <= 10; ++i) {
    alphas.push_back(i / 10.0);
  }
  const auto& wanted = groups["layers.0.down"]["s_all_alphas_f32_hex"];
  for (std::size_t alpha = 0; alpha < alphas.size(); ++alpha) {
    const std::vector<float> s = channel_scales(absmean, {}, {alphas[alpha], 0}, false);
    for (std::size_t channel = 0; channel < absmean.size(); ++channel) {
      const auto bits = static_cast<std::int64_t>(
          std::stoul(wanted[alpha][channel].get<std::string>(), nullptr, 16));
      const auto ours = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(s[channel]));
      EXPECT_LE(std::abs(ours - bits), 3) << "alpha " << alphas[alpha] << ", channel " << channel;
    }
  }
}

}  // namespace
}  // namespace quantmill
