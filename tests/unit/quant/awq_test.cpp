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

TEST(AwqCandidates, AlphaZeroIsExactlyNeutral) {
  const std::vector<double> absmean = {0.1, 3.0, 0.7};
  EXPECT_THAT(awq_candidates(absmean, std::vector<double>{0.0}, false)[0], testing::Each(1.0F));
}

TEST(AwqCandidates, AlphaOneIsProportionalToTheMeanWithGeometricMeanOne) {
  // mean 4: normalized 0.5, 0.5, 2, geometric mean 0.5^(1/3).
  const std::vector<double> absmean = {2.0, 2.0, 8.0};
  const std::vector<float> s = awq_candidates(absmean, std::vector<double>{1.0}, false)[0];
  const double centre = std::cbrt(0.5 * 0.5 * 2.0);
  EXPECT_FLOAT_EQ(s[0], static_cast<float>(0.5 / centre));
  EXPECT_FLOAT_EQ(s[2], static_cast<float>(2.0 / centre));
}

TEST(AwqCandidates, AChannelWithoutActivationIsClampedNotInfinite) {
  const std::vector<double> absmean = {0.0, 1.0};
  const std::vector<float> s = awq_candidates(absmean, std::vector<double>{1.0}, false)[0];
  // 1e-8 / 0.5 is below the clamp 0.01; 1 / 0.5 = 2: geometric mean sqrt(0.02).
  EXPECT_FLOAT_EQ(s[0], static_cast<float>(0.01 / std::sqrt(0.02)));
}

TEST(AwqCandidates, PowersOfTwoOnRequest) {
  const std::vector<double> absmean = {0.3, 5.0, 1.1, 0.02, 40.0};
  const auto candidates = awq_candidates(absmean, std::vector<double>{0.7}, true);
  for (const float s : candidates[0]) {
    int exponent = 0;
    EXPECT_EQ(std::frexp(s, &exponent), 0.5F) << s;
  }
}

// The s that the script computes with torch in float, from the same statistics: ours is computed in
// double, so at most a few units in the last place away.
TEST(AwqCandidates, AgreesWithTorchWithinThreeUnitsInTheLastPlace) {
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
  const auto candidates = awq_candidates(absmean, alphas, false);
  const auto& wanted = groups["layers.0.down"]["s_all_alphas_f32_hex"];
  for (std::size_t alpha = 0; alpha < alphas.size(); ++alpha) {
    for (std::size_t channel = 0; channel < absmean.size(); ++channel) {
      const auto bits = static_cast<std::int64_t>(
          std::stoul(wanted[alpha][channel].get<std::string>(), nullptr, 16));
      const auto ours =
          static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(candidates[alpha][channel]));
      EXPECT_LE(std::abs(ours - bits), 3) << "alpha " << alphas[alpha] << ", channel " << channel;
    }
  }
}

}  // namespace
}  // namespace quantmill
