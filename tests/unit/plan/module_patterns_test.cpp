#include "plan/module_patterns.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "base/pattern.h"
#include "base/regular_expression.h"
#include "tests/support/expect_error.h"

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<std::string> kPrefixes = {"", "model.", "model.language_model."};

// Attention of every layer, an MLP, and from layer 1 on experts in place of it.
std::vector<QuantizedModule> modules(const std::function<Scheme(const std::string&)>& scheme_of) {
  std::vector<QuantizedModule> all;
  const auto add = [&](const std::string& name, const std::string& fused) {
    all.push_back({"model." + name, fused, scheme_of(name)});
  };
  for (const std::string layer : {"layers.0.", "layers.1.", "layers.11."}) {
    for (const std::string part : {"q", "k", "v"}) {
      add(layer + "self_attn." + part + "_proj", layer + "self_attn.qkv_proj");
    }
    add(layer + "self_attn.o_proj", "");
    if (layer == "layers.0.") {
      add(layer + "mlp.down_proj", "");
      continue;
    }
    for (const std::string expert : {"0", "1", "2"}) {
      add(layer + "mlp.experts." + expert + ".down_proj", layer + "mlp.experts");
    }
  }
  return all;
}

bool contains(const std::string& name, const std::string& part) {
  return name.find(part) != std::string::npos;
}

TEST(ModulesByScheme, OneSchemeNeedsNoPatterns) {
  const auto found = modules_by_scheme(
      modules([](const std::string&) { return Scheme::kInt8; }), Scheme::kMxfp4, kPrefixes, 0);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].scheme, Scheme::kInt8);
  EXPECT_THAT(found[0].patterns, ElementsAre());
}

TEST(ModulesByScheme, PatternsHaveNoNumbersWhereAllLayersAreAlike) {
  const auto found =
      modules_by_scheme(modules([](const std::string& name) {
                          return contains(name, "self_attn") ? Scheme::kFp8Channel : Scheme::kMxfp4;
                        }),
                        Scheme::kMxfp4,
                        kPrefixes,
                        std::nullopt);
  ASSERT_EQ(found.size(), 2);
  EXPECT_EQ(found[0].scheme, Scheme::kMxfp4);
  EXPECT_EQ(found[1].scheme, Scheme::kFp8Channel);
  EXPECT_THAT(found[1].patterns,
              ElementsAre("layers.#.self_attn.k_proj",
                          "layers.#.self_attn.o_proj",
                          "layers.#.self_attn.q_proj",
                          "layers.#.self_attn.qkv_proj",
                          "layers.#.self_attn.v_proj"));
}

TEST(ModulesByScheme, ALayerIsNumberedAndItsExpertsAreNot) {
  const auto found = modules_by_scheme(modules([](const std::string& name) {
                                         return contains(name, "layers.1.mlp") ? Scheme::kMxfp6E2m3
                                                                               : Scheme::kMxfp4;
                                       }),
                                       Scheme::kMxfp4,
                                       kPrefixes,
                                       0);
  ASSERT_EQ(found.size(), 2);
  EXPECT_THAT(found[1].patterns,
              ElementsAre("layers.1.mlp.experts", "layers.1.mlp.experts.#.down_proj"));
}

TEST(ModulesByScheme, LayersThatServersNumberOtherwiseCantBeToldApart) {
  const Error error = test::error_of([] {
    modules_by_scheme(modules([](const std::string& name) {
                        return contains(name, "layers.1.") ? Scheme::kMxfp6E2m3 : Scheme::kMxfp4;
                      }),
                      Scheme::kMxfp4,
                      kPrefixes,
                      36);
  });
  EXPECT_EQ(error.code(), ErrorCode::kInput);
  EXPECT_THAT(error.message(), HasSubstr("layers.1.self_attn.q_proj has scheme mxfp6-e2m3"));
}

TEST(ModulesByScheme, ANameThatIsTheEndOfAnotherIsNotMistaken) {
  const std::vector<QuantizedModule> all = {{"mtp.layers.0.fc", "", Scheme::kMxfp4},
                                            {"model.layers.0.fc", "", Scheme::kInt8}};
  const Error error = test::error_of([&] { modules_by_scheme(all, Scheme::kMxfp4, kPrefixes, 0); });
  EXPECT_THAT(error.message(), HasSubstr("layers.0.fc: servers' configs can't tell it from"));
}

TEST(ModulePatterns, AsServersSpellThem) {
  const std::string pattern = "layers.1.mlp.experts.#.w1";
  const RegularExpression expression(as_regular_expression(pattern).substr(3));
  for (const std::string name :
       {"layers.1.mlp.experts.7.w1", "model.language_model.layers.1.mlp.experts.120.w1"}) {
    EXPECT_TRUE(expression.matches_start(name)) << name;
    EXPECT_TRUE(matches_pattern(as_glob(pattern), name)) << name;
  }
  for (const std::string name : {"layers.11.mlp.experts.7.w1",
                                 "layers.1.mlp.experts.7.w12",
                                 "layers.1.mlpxexperts.7.w1",
                                 "sublayers.1.mlp.experts.7.w1"}) {
    EXPECT_FALSE(expression.matches_start(name)) << name;
  }
  EXPECT_FALSE(matches_pattern(as_glob(pattern), "layers.11.mlp.experts.7.w1"));
}

}  // namespace
}  // namespace quantmill
