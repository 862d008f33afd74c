// mx_error_curve with the tie rule of the script that --compat seed reproduces, against that
// script's own errors.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/mx.h"
#include "tests/kernels/golden_tensors.h"
#include "tests/support/temporary_folder.h"

namespace quantmill {
namespace {

using test::golden;
using test::GoldenTensors;

struct GroupCase {
  const char* group;
  const char* statistic;
  std::vector<std::string> weights;
};

nlohmann::json read_json(const std::string& name) {
  std::ifstream in(golden(name));
  return nlohmann::json::parse(in);
}

std::vector<double> error_curve(const Context& context, const GroupCase& group, TieRule ties) {
  static const GoldenTensors drafter(golden("dflash2-tiny/model.safetensors"));
  static const nlohmann::json statistics = read_json("dflash2-tiny/calib/expected_f64.json");
  static const nlohmann::json groups = read_json("seed/as-written/groups.json");
  std::vector<float> importance;
  for (const double value : statistics.at(group.statistic).at("absmean")) {
    importance.push_back(std::max(static_cast<float>(value), 1e-8F));
  }
  std::vector<float> candidates;
  for (const auto& s : groups.at(group.group).at("s_all_alphas_f32_hex")) {
    for (const std::string hex : s) {
      candidates.push_back(
          std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(hex, nullptr, 16))));
    }
  }
  std::vector<double> sums(11);
  for (const std::string& name : group.weights) {
    const std::vector<float> weight = drafter.floats(name);
    const auto shape = drafter.shape(name);
    std::vector<double> block_sums(shape.at(1) / kMxBlock * sums.size());
    mx_error_curve(context,
                   {ElementFormat::kE2m1, ScaleRule::kFloor, ties},
                   {weight.data(), shape.at(0), shape.at(1)},
                   importance,
                   {candidates.data(), 11, shape.at(1)},
                   block_sums);
    for (std::size_t i = 0; i < block_sums.size(); ++i) {
      sums[i % sums.size()] += block_sums[i];
    }
  }
  return sums;
}

std::vector<GroupCase> groups_of_layer(int layer) {
  static const char* const kGroups[2][3] = {{"layers.0.qkv", "layers.0.gate_up", "layers.0.down"},
                                            {"layers.1.qkv", "layers.1.gate_up", "layers.1.down"}};
  static const char* const kStatistics[2][3] = {
      {"layers.0.self_attn.qkv_proj", "layers.0.mlp.gate_up_proj", "layers.0.mlp.down_proj"},
      {"layers.1.self_attn.qkv_proj", "layers.1.mlp.gate_up_proj", "layers.1.mlp.down_proj"}};
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  const auto weight = [&](const char* name) { return prefix + name + "_proj.weight"; };
  return {{kGroups[layer][0],
           kStatistics[layer][0],
           {weight("self_attn.q"), weight("self_attn.k"), weight("self_attn.v")}},
          {kGroups[layer][1], kStatistics[layer][1], {weight("mlp.gate"), weight("mlp.up")}},
          {kGroups[layer][2], kStatistics[layer][2], {weight("mlp.down")}}};
}

TEST(SeedObjective, EveryCandidateHasTheScriptsError) {
  const nlohmann::json groups = read_json("seed/as-written/groups.json");
  for (const Context& context :
       {Context{Backend::kReference, Isa::kPlain}, Context{Backend::kCpu, best_isa()}}) {
    for (const int layer : {0, 1}) {
      for (const GroupCase& group : groups_of_layer(layer)) {
        const std::vector<double> got = error_curve(context, group, TieRule::kSeed);
        const auto want = groups.at(group.group).at("errors_f64").get<std::vector<double>>();
        ASSERT_EQ(want.size(), 11U);
        for (std::size_t alpha = 0; alpha < 11; ++alpha) {
          EXPECT_NEAR(got[alpha], want[alpha], 1e-6 * want[alpha]) << group.group << ' ' << alpha;
        }
        const auto best = std::min_element(got.begin(), got.end()) - got.begin();
        EXPECT_EQ(best, groups.at(group.group).at("alpha_index").get<std::ptrdiff_t>());
      }
    }
  }
}

// The tie rule matters: without it, the errors are not the script's.
TEST(SeedObjective, TiesToEvenGiveOtherErrors) {
  const nlohmann::json groups = read_json("seed/as-written/groups.json");
  const GroupCase group = groups_of_layer(0).at(0);
  const std::vector<double> got =
      error_curve({Backend::kReference, Isa::kPlain}, group, TieRule::kEven);
  EXPECT_LT(got[0], groups.at(group.group).at("errors_f64").at(0).get<double>() * 0.999);
}

}  // namespace
}  // namespace quantmill
