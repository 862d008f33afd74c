#include "plan/recipe_json.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>

#include "base/error.h"

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Recipe with(const std::string& json) {
  Recipe recipe;
  apply_recipe_json(json, recipe);
  return recipe;
}

// The message of the kUsage error that `body` throws, or "" if it throws none.
template <typename Body>
std::string refusal(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.message();
  }
  return "";
}

TEST(RecipeJson, SetsEveryKey) {
  const Recipe recipe = with(R"({
    "scheme": "f32", "layout": "plain", "scaling": "none", "alphas": [0, 0.25, 1], "scale_rule": "rceil",
    "fold_scales": "pow2", "schemes": [{"match": "fc", "scheme": "keep"}, {"match": "*.o_proj", "scheme": "int8"}],
    "keep": ["fc", "*.o_proj"], "compat": "seed", "architecture": "dflash",
    "allow_unknown": true, "max_shard_size": "2G"})");
  EXPECT_EQ(recipe.scheme, Scheme::kF32);
  EXPECT_EQ(recipe.layout, Layout::kPlain);
  EXPECT_EQ(recipe.scaling, Scaling::kNone);
  EXPECT_THAT(recipe.alphas, ElementsAre(0.0, 0.25, 1.0));
  EXPECT_EQ(recipe.scale_rule, ScaleRule::kRceil);
  EXPECT_EQ(recipe.fold_scales, FoldScales::kPow2);
  EXPECT_THAT(recipe.schemes,
              ElementsAre(SchemeRule{"fc", std::nullopt}, SchemeRule{"*.o_proj", Scheme::kInt8}));
  EXPECT_THAT(recipe.keep, ElementsAre("fc", "*.o_proj"));
  EXPECT_EQ(recipe.compat, Compat::kSeed);
  EXPECT_EQ(recipe.architecture, "dflash");
  EXPECT_TRUE(recipe.allow_unknown);
  EXPECT_EQ(recipe.max_shard_bytes, 2147483648U);
}

TEST(RecipeJson, LeavesOtherSettingsAlone) {
  Recipe recipe;
  recipe.scheme = Scheme::kBf16;
  recipe.keep = {"fc"};
  apply_recipe_json(R"({"max_shard_size": 5000})", recipe);
  EXPECT_EQ(recipe.scheme, Scheme::kBf16);
  EXPECT_THAT(recipe.keep, ElementsAre("fc"));
  EXPECT_EQ(recipe.max_shard_bytes, 5000U);
}

TEST(RecipeJson, ChangesNothingIfItIsRefused) {
  Recipe recipe;
  EXPECT_NE(refusal([&] { apply_recipe_json(R"({"scheme": "bf16", "layout": "x"})", recipe); }),
            "");
  EXPECT_EQ(recipe.scheme, Scheme::kMxfp4);
}

TEST(RecipeJson, PrintsTheDefaultsInThisOrder) {
  EXPECT_EQ(to_json(Recipe()), R"({
  "scheme": "mxfp4",
  "schemes": [],
  "layout": "quark",
  "scaling": "awq-grid",
  "alphas": [
    0,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    1
  ],
  "betas": [
    0
  ],
  "objective": "w4a16",
  "scale_rule": "even",
  "rounding": "nearest",
  "fold_scales": "exact",
  "input_scales": "auto",
  "kv_cache": "none",
  "min_tokens": 32,
  "keep": [],
  "include": [],
  "compat": "none",
  "architecture": "",
  "allow_unknown": false,
  "untie": false,
  "max_shard_size": 0
})");
}

TEST(RecipeJson, ReadsWhatItPrints) {
  const std::string text = to_json(with(
      R"({"scheme": "bf16", "layout": "plain", "scaling": "none", "alphas": [0.1, 0.30000000000000004, 1e-3],
               "scale_rule": "ceil", "fold_scales": "off", "keep": ["a\"b", "é"], "architecture": "x.json",
               "allow_unknown": true, "max_shard_size": 18446744073709551615})"));
  EXPECT_EQ(to_json(with(text)), text);
  EXPECT_EQ(with(text).alphas[1], 0.30000000000000004);
  EXPECT_EQ(with(text).max_shard_bytes, std::numeric_limits<std::uint64_t>::max());
}

struct BadRecipe {
  const char* name;
  const char* json;
  const char* message;
};

class BadRecipeJson : public testing::TestWithParam<BadRecipe> {};

TEST_P(BadRecipeJson, IsRefused) {
  EXPECT_THAT(refusal([] { with(GetParam().json); }),
              testing::AllOf(testing::StartsWith("recipe: "), HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    All,
    BadRecipeJson,
    testing::Values(
        BadRecipe{"NotJson", "scheme: mxfp4", "not valid JSON"},
        BadRecipe{"NotAnObject", "3", "an object is wanted, found the number 3"},
        BadRecipe{"UnknownKey",
                  R"({"sheme": "bf16"})",
                  "unknown key \"sheme\"; known are scheme, schemes, layout, scaling"},
        BadRecipe{"UnknownScheme",
                  R"({"scheme": "mxfp3"})",
                  "scheme \"mxfp3\" is not known; known are mxfp4, "},
        BadRecipe{"UnknownLayout",
                  R"({"layout": "gguf"})",
                  "layout \"gguf\" is not known; known are quark, compressed-tensors, fp8, "
                  "gpt-oss, plain"},
        BadRecipe{"UnknownScaling", R"({"scaling": "awq"})", "choose one of none, awq-grid"},
        BadRecipe{
            "UnknownRule", R"({"scale_rule": "round"})", "choose one of even, floor, rceil, ceil"},
        BadRecipe{"UnknownFold", R"({"fold_scales": "no"})", "choose one of exact, pow2, off"},
        BadRecipe{"UnknownCompat", R"({"compat": "quark"})", "choose one of none, seed"},
        BadRecipe{"SchemeType", R"({"scheme": 4})", "scheme must be text, found the number 4"},
        BadRecipe{
            "AlphasType", R"({"alphas": 0.5})", "alphas must be a list, found the number 0.5"},
        BadRecipe{"AlphaType",
                  R"({"alphas": ["0.5"]})",
                  "alphas must hold numbers, found the text \"0.5\""},
        BadRecipe{"KeepType", R"({"keep": "fc"})", "keep must be a list, found the text \"fc\""},
        BadRecipe{"KeepItem", R"({"keep": [null]})", "keep must be text, found null"},
        BadRecipe{"FlagType", R"({"allow_unknown": "yes"})", "allow_unknown must be true or false"},
        BadRecipe{
            "SizeType", R"({"max_shard_size": 1.5})", "max_shard_size must be a number of bytes"},
        BadRecipe{"SizeNegative",
                  R"({"max_shard_size": -1})",
                  "max_shard_size must be a number of bytes"},
        BadRecipe{"SizeText", R"({"max_shard_size": "4X"})", "\"4X\" is no size"},
        BadRecipe{"TwiceTheKey", R"({"scheme": "bf16", "scheme": "f32"})", "appears twice"}),
    [](const auto& test_info) { return test_info.param.name; });

TEST(CheckRecipe, TakesTheDefaultsAndBothPlainSchemes) {
  EXPECT_EQ(refusal([] { check_recipe(Recipe()); }), "");
  EXPECT_EQ(refusal([] { check_recipe(with(R"({"scheme": "bf16", "layout": "plain"})")); }), "");
  EXPECT_EQ(refusal([] { check_recipe(with(R"({"scheme": "f32", "layout": "plain"})")); }), "");
}

TEST(CheckRecipe, RefusesSchemesThatALayoutDoesNotHave) {
  EXPECT_THAT(refusal([] { check_recipe(with(R"({"layout": "plain"})")); }),
              HasSubstr("layout \"plain\" takes the schemes bf16, f16, f32, and scheme \"mxfp4\" "
                        "the layouts quark"));
  EXPECT_THAT(refusal([] { check_recipe(with(R"({"scheme": "bf16", "layout": "quark"})")); }),
              HasSubstr("and scheme \"bf16\" the layouts plain"));
}

TEST(CheckRecipe, RefusesAlphasOutsideTheirRange) {
  EXPECT_THAT(refusal([] { check_recipe(with(R"({"alphas": []})")); }), HasSubstr("at least one"));
  EXPECT_THAT(refusal([] { check_recipe(with(R"({"alphas": [0.5, 1.1]})")); }),
              HasSubstr("1.1 is outside 0 to 1"));
  EXPECT_THAT(refusal([] { check_recipe(with(R"({"alphas": [-0.1]})")); }),
              HasSubstr("-0.1 is outside"));
  Recipe recipe;
  recipe.alphas = {std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THAT(refusal([&] { check_recipe(recipe); }), HasSubstr("outside 0 to 1"));
}

TEST(CheckRecipe, RefusesFeedbackWhereNothingGainsByIt) {
  const auto checked = [](const std::string& json) {
    return refusal([&] { check_recipe(with(json)); });
  };
  EXPECT_EQ(checked(R"({"rounding": "gptq"})"), "");
  EXPECT_THAT(
      checked(R"({"rounding": "gptq", "scheme": "fp8-channel"})"),
      HasSubstr("\"gptq\" is of MX, NVFP4 and integer schemes; with scheme \"fp8-channel\""));
  EXPECT_EQ(checked(R"({"rounding": "gptq", "scheme": "fp8-channel",
                        "schemes": [{"match": "*.down_proj", "scheme": "int4-g128"}]})"),
            "");
  EXPECT_THAT(checked(R"({"rounding": "gptq", "compat": "seed", "scale_rule": "floor"})"),
              HasSubstr("compat \"seed\" fixes rounding, so gptq can't be given"));
}

TEST(CheckRecipe, RefusesBetasAndObjectivesThatDoNotFit) {
  EXPECT_THAT(refusal([] { check_recipe(with(R"({"betas": [2]})")); }),
              HasSubstr("betas: 2 is outside 0 to 1"));
  EXPECT_THAT(refusal([] { check_recipe(with(R"({"scheme": "int8", "objective": "w4a4"})")); }),
              HasSubstr("objective \"w4a4\""));
  EXPECT_THAT(refusal([] { check_recipe(with(R"({"scheme": "int8", "scaling": "block-grid"})")); }),
              HasSubstr("scaling \"block-grid\""));
  EXPECT_EQ(
      refusal([] {
        check_recipe(with(R"({"scaling": "block-grid", "objective": "w4a4", "scale_rule": "mse",
                "schemes": [{"match": "*.mlp.*", "scheme": "fp8-channel"}]})"));
      }),
      "");
}

TEST(DefaultRecipe, IsWhatMeasuredBestForTheScheme) {
  const Recipe mxfp4 = default_recipe(Scheme::kMxfp4, Layout::kQuark);
  EXPECT_EQ(mxfp4.scaling, Scaling::kBlockGrid);
  EXPECT_EQ(mxfp4.scale_rule, ScaleRule::kMse);
  EXPECT_EQ(mxfp4.objective, Objective::kW4A4);
  EXPECT_EQ(default_recipe(Scheme::kMxfp4, Layout::kCompressedTensors).objective,
            Objective::kW4A16);
  const Recipe int8 = default_recipe(Scheme::kInt8, Layout::kCompressedTensors);
  EXPECT_EQ(int8.scheme, Scheme::kInt8);
  EXPECT_EQ(int8.scaling, Scaling::kAwqGrid);
  EXPECT_EQ(int8.scale_rule, ScaleRule::kEven);
}

TEST(TriedExponents, AreAlphasByBetasWithNoScalingAmongThem) {
  EXPECT_THAT(tried_exponents(with(R"({"alphas": [0.5, 1], "betas": [0, 0.25]})")),
              ElementsAre(ScaleExponents{0, 0},
                          ScaleExponents{0.5, 0},
                          ScaleExponents{0.5, 0.25},
                          ScaleExponents{1, 0},
                          ScaleExponents{1, 0.25}));
  EXPECT_THAT(tried_exponents(with(R"({"alphas": [1, 0]})")),
              ElementsAre(ScaleExponents{1, 0}, ScaleExponents{0, 0}));
  EXPECT_THAT(tried_exponents(with(R"({"scaling": "balance"})")),
              ElementsAre(ScaleExponents{0, 0}, ScaleExponents{0.5, 0.5}));
  EXPECT_EQ(tried_exponents(with(R"({"scaling": "block-grid"})")).size(), 25U);
}

TEST(CheckRecipe, RefusesWhatCompatSeedFixes) {
  const auto message = [](const std::string& setting) {
    return refusal([&] { check_recipe(with(R"({"compat": "seed", )" + setting + "}")); });
  };
  EXPECT_EQ(refusal([] { check_recipe(with(R"({"compat": "seed"})")); }), "");
  EXPECT_EQ(message(R"("scale_rule": "ceil")"), "");  // overridden by the caller, who says so
  EXPECT_EQ(message(R"("scheme": "f32", "layout": "plain")"), "");  // its folds, not quantized
  EXPECT_THAT(message(R"("scaling": "none")"), HasSubstr("fixes scaling"));
  EXPECT_THAT(message(R"("alphas": [0.5])"), HasSubstr("fixes alphas"));
  EXPECT_THAT(message(R"("fold_scales": "pow2")"), HasSubstr("fixes fold_scales"));
  EXPECT_THAT(message(R"("keep": ["fc"])"), HasSubstr("fixes keep"));
}

TEST(RecipeJson, ATargetReadsBackWithWhatWasChosen) {
  const Recipe recipe = with(R"({"scheme": "mxfp4", "target_bits": 4.75,
    "target_schemes": ["mxfp4", "fp8-channel", "keep"],
    "chosen": {"a.weight": "fp8-channel", "b.weight": "keep"}})");
  const Recipe again = with(to_json(recipe));
  EXPECT_EQ(again.target, recipe.target);
  EXPECT_EQ(again.target.bits, 4.75);
  EXPECT_THAT(again.target.schemes, ElementsAre(Scheme::kMxfp4, Scheme::kFp8Channel, std::nullopt));
  EXPECT_EQ(again.chosen,
            (ChosenSchemes{{"a.weight", Scheme::kFp8Channel}, {"b.weight", std::nullopt}}));
  EXPECT_FALSE(awaits_choice(again));
  EXPECT_TRUE(awaits_choice(with(R"({"target_size": "70G"})")));
  EXPECT_THAT(to_json(Recipe{}), testing::Not(HasSubstr("target")));
}

TEST(RecipeJson, CandidatesBeginWithTheRecipesScheme) {
  EXPECT_THAT(target_schemes(with(R"({"layout": "quark"})")),
              ElementsAre(Scheme::kMxfp4, Scheme::kMxfp6E2m3, Scheme::kFp8Channel, std::nullopt));
  EXPECT_THAT(target_schemes(with(R"({"scheme": "nvfp4"})")),
              ElementsAre(Scheme::kNvfp4, Scheme::kFp8Channel, std::nullopt));
  EXPECT_THAT(target_schemes(with(R"({"scheme": "fp8-block"})")),
              ElementsAre(Scheme::kFp8Block, std::nullopt));
  const Recipe listed = with(R"({"target_schemes": ["keep", "int8", "nvfp4"]})");
  EXPECT_EQ(listed.scheme, Scheme::kInt8);
  EXPECT_EQ(listed.layout, Layout::kCompressedTensors);
}

TEST(CheckRecipe, RefusesTargetsThatCanNotBe) {
  const auto refused = [](const std::string& json) {
    return refusal([&] { check_recipe(with(json)); });
  };
  EXPECT_EQ(refused(R"({"target_bits": 5})"), "");
  EXPECT_THAT(refused(R"({"target_bits": 5, "target_size": 100})"), HasSubstr("choose one"));
  EXPECT_THAT(refused(R"({"target_bits": 0})"), HasSubstr("more than 0"));
  EXPECT_THAT(refused(R"({"target_schemes": ["mxfp4"]})"), HasSubstr("no target"));
  EXPECT_THAT(refused(R"({"target_bits": 5, "scheme": "mxfp4", "layout": "gpt-oss"})"),
              HasSubstr("one form for all tensors"));
  EXPECT_THAT(
      refused(R"({"target_bits": 5, "scheme": "mxfp4", "target_schemes": ["fp8-channel"]})"),
      HasSubstr("not among the candidates"));
  EXPECT_THAT(refused(R"({"target_bits": 5, "target_schemes": ["mxfp4", "bf16"]})"),
              HasSubstr("write \"keep\""));
  EXPECT_THAT(refused(R"({"target_bits": 5, "target_schemes": ["mxfp4", "mxfp4"]})"),
              HasSubstr("given twice"));
  EXPECT_THAT(
      refused(R"({"target_bits": 5, "layout": "quark", "target_schemes": ["mxfp4", "int8"]})"),
      HasSubstr("layout \"quark\" takes the schemes"));
}

}  // namespace
}  // namespace quantmill
