// What architecture files can say beyond a plain transformer, on a model of a few tensors.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "base/error.h"
#include "plan/architecture.h"

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Tensors = std::vector<std::pair<const char*, std::vector<std::uint64_t>>>;

std::vector<SourceTensor> stored(const Tensors& tensors) {
  std::vector<SourceTensor> result;
  for (const auto& [name, shape] : tensors) {
    SourceTensor& tensor = result.emplace_back();
    tensor.entry.name = name;
    tensor.entry.shape = shape;
    tensor.entry.dtype = DType::kBf16;
  }
  return result;
}

constexpr const char* kConfig = R"({"model_type": "toy", "text_config": {"layers": 3, "size": 4},
  "experts": 2, "types": ["a", "b", "a"], "flag": true})";

std::string file(const std::string& body) {
  return R"({"schema": 1, "name": "toy", "config_sections": ["text_config"], "prefixes": ["model."],
    "parameters": {"layers": "layers", "size": "size", "experts": "experts", "flag": "flag",
                   "types": {"config": ["types"], "kind": "list"}},
    "indices": {"layer": "layers", "expert": "experts"}, )" +
         body + "}";
}

ResolvedArchitecture resolve(const std::string& body, const Tensors& tensors) {
  return resolve_architecture(file(body), kConfig, stored(tensors), false);
}

std::string refusal(const std::string& body, const Tensors& tensors) {
  try {
    resolve(body, tensors);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    return error.message();
  }
  return "";
}

std::vector<std::string> names_of(const ResolvedArchitecture& architecture) {
  std::vector<std::string> names;
  for (const ModelTensor& tensor : architecture.tensors) {
    names.push_back(tensor.name);
  }
  return names;
}

TEST(Language, ConditionsChooseLayersByTheConfig) {
  const std::string body = R"("conditions": {"special": "types[layer] == 'b' and flag"},
    "tensors": [{"name": "l.{layer}.b", "if": "special", "shape": ["size"]},
                {"name": "l.{layer}.a", "if": "not special", "shape": ["size"]}])";
  const ResolvedArchitecture found =
      resolve(body, {{"l.0.a", {4}}, {"model.l.1.b", {4}}, {"l.2.a", {4}}});
  EXPECT_EQ(found.tensors[1].layer, 1U);
  EXPECT_THAT(refusal(body, {{"l.0.a", {4}}, {"l.1.a", {4}}, {"l.2.a", {4}}}),
              HasSubstr("tensor l.1.b is missing"));
  EXPECT_THAT(refusal(body, {{"l.0.a", {4}}, {"l.1.b", {4}}, {"l.1.a", {4}}, {"l.2.a", {4}}}),
              HasSubstr("1 tensor of the checkpoint is not known: l.1.a"));
}

TEST(Language, AConditionThatNeedsItselfIsRefused) {
  EXPECT_THAT(
      refusal(R"("conditions": {"a": "not b", "b": "a"}, "tensors": [{"name": "x", "if": "a"}])",
              {{"x", {1}}}),
      HasSubstr("needs itself"));
}

constexpr const char* kVariants = R"("tensors": [
    {"name": "e.{expert}.w", "variant": "apart"}, {"name": "e.w", "variant": "together"},
    {"name": "e.b", "variant": "together"}], "one_of": [["apart", "together"]])";

TEST(Language, OneVariantIsThereAndWhole) {
  EXPECT_THAT(names_of(resolve(kVariants, {{"e.0.w", {1}}, {"e.1.w", {1}}})),
              ElementsAre("e.0.w", "e.1.w"));
  EXPECT_THAT(names_of(resolve(kVariants, {{"e.w", {1}}, {"e.b", {1}}})),
              ElementsAre("e.w", "e.b"));
  EXPECT_THAT(refusal(kVariants, {{"e.w", {1}}}), HasSubstr("tensor e.b is missing"));
  EXPECT_THAT(refusal(kVariants, {{"e.0.w", {1}}, {"e.1.w", {1}}, {"e.w", {1}}, {"e.b", {1}}}),
              HasSubstr("one of the variants apart, together, and has apart and together"));
  EXPECT_THAT(refusal(kVariants, {}), HasSubstr("none of them"));
}

constexpr const char* kSlices = R"("tensors": [
    {"name": "n", "role": "norm"},
    {"name": "up", "role": "linear", "shape": ["experts", "2 * size", "size"], "slices": "expert", "quantize": true,
     "written_as": [{"name": "{expert}.gate", "rows": {"size": "1", "groups": "size", "stride": "2"}},
                    {"name": "{expert}.up", "rows": {"start": "1", "size": "1", "groups": "size", "stride": "2"}}]},
    {"name": "down", "role": "linear", "slices": "expert", "transposed": true}],
  "activations": [
    {"name": "in", "producer": {"norm": "n"}, "readers": ["up[{expert}]"]},
    {"name": "{expert}.mid", "producer": {"rows": "up[{expert}]",
       "range": {"start": "1", "size": "1", "groups": "size", "stride": "2"}}, "readers": ["down[{expert}]"],
     "statistics": "experts.{expert}"}])";
const Tensors kSlicesStored = {
    {"model.n", {4}}, {"model.up", {2, 8, 4}}, {"model.down", {2, 4, 6}}};

TEST(Language, SlicesAreTensorsOfTheirOwn) {
  const ResolvedArchitecture found = resolve(kSlices, kSlicesStored);
  EXPECT_THAT(
      names_of(found),
      ElementsAre("model.n", "model.up[0]", "model.up[1]", "model.down[0]", "model.down[1]"));
  const ModelTensor& up = found.tensors[2];
  EXPECT_EQ(up.stored, 1U);
  EXPECT_EQ(up.slice, 1U);
  EXPECT_EQ(up.out_features(), 8U);
  EXPECT_EQ(up.module(), "model.up");
  ASSERT_EQ(up.written_as.size(), 2U);
  EXPECT_EQ(up.written_as[1].name, "model.1.up");  // with the prefix of the stored name
  EXPECT_EQ(up.written_as[1].rows.row(3), 7U);
  EXPECT_EQ(found.tensors[4].out_features(), 6U);  // stored as [in, out]
  EXPECT_EQ(found.tensors[4].in_features(), 4U);
  ASSERT_EQ(found.activations.size(), 3U);
  EXPECT_THAT(found.activations[0].readers, ElementsAre(1U, 2U));
  EXPECT_THAT(found.activations[0].recorded_as, IsEmpty());  // the input of no single module
  EXPECT_THAT(found.activations[2].recorded_as, ElementsAre("experts.1"));
  EXPECT_EQ(found.activations[2].producer->tensor, 2U);
  EXPECT_EQ(found.activations[2].producer->rows.row(2), 5U);
  EXPECT_EQ(found.fold_groups.size(), 3U);
}

TEST(Language, SlicesHaveTheShapeAndNumberThatTheConfigStates) {
  EXPECT_THAT(refusal(kSlices, {{"n", {4}}, {"up", {3, 8, 4}}, {"down", {2, 4, 6}}}),
              HasSubstr("tensor up has shape [3, 8, 4], wanted [2, 8, 4]"));
  EXPECT_THAT(refusal(kSlices, {{"n", {4}}, {"up", {2, 8, 4}}, {"down", {5, 4, 6}}}),
              HasSubstr("tensor down has shape [5, 4, 6], wanted 2 slices"));
  EXPECT_THAT(refusal(kSlices, {{"n", {4}}, {"up", {2, 8, 4}}, {"down", {4, 6}}}),
              HasSubstr("wanted matrices [slices, rows, cols]"));
  EXPECT_THAT(refusal(kSlices, {{"n", {4}}, {"up", {2, 8, 4}}, {"down", {2, 4, 0}}}),
              HasSubstr("no elements"));
}

// Two norms side by side, as the first layer of an EAGLE-3 head reads them.
constexpr const char* kHalves = R"("tensors": [
    {"name": "a", "role": "norm"}, {"name": "b", "role": "norm"}, {"name": "q", "role": "linear"}],
  "activations": [
    {"name": "left", "producer": {"norm": "a"}, "readers": ["q"], "columns": {"start": "0", "size": "size"}},
    {"name": "right", "producer": {"norm": "b"}, "readers": ["q"], "columns": {"start": "size", "size": "size"}}])";

TEST(Language, ActivationsOfDifferentColumnsHaveScalesOfTheirOwn) {
  const ResolvedArchitecture found = resolve(kHalves, {{"a", {4}}, {"b", {4}}, {"q", {6, 8}}});
  ASSERT_EQ(found.fold_groups.size(), 2U);
  EXPECT_EQ(found.fold_groups[1].num_channels, 4U);
  EXPECT_EQ(found.activations[1].reader_columns, 8U);
  EXPECT_EQ(found.activations[1].columns.channel_of(5), 1U);
  EXPECT_THAT(refusal(kHalves, {{"a", {4}}, {"b", {4}}, {"q", {6, 7}}}),
              HasSubstr("its reader q has 7 columns, wanted at least 8"));
}

TEST(Language, ColumnsThatOverlapInPartAreRefused) {
  std::string body = kHalves;
  body.replace(body.rfind("\"start\": \"size\""), 15, "\"start\": \"2\"");
  EXPECT_THAT(refusal(body, {{"a", {4}}, {"b", {4}}, {"q", {6, 8}}}),
              HasSubstr("left and right share readers and have different columns"));
}

// Value rows of a fused projection, two key-value heads of which each is read by two query heads.
constexpr const char* kFused = R"("tensors": [
    {"name": "qkv", "role": "linear"}, {"name": "qkv.bias"}, {"name": "o", "role": "linear"}],
  "activations": [{"name": "o", "producer": {"rows": "qkv", "bias": "qkv.bias", "range": {"start": "12", "size": "4"}},
    "readers": ["o"], "columns": {"groups": "2", "repeats": "2", "size": "2"}}])";

TEST(Language, SomeRowsOfALinearMakeAnActivation) {
  const ResolvedArchitecture found =
      resolve(kFused, {{"qkv", {16, 4}}, {"qkv.bias", {16}}, {"o", {4, 8}}});
  ASSERT_TRUE(found.activations[0].producer);
  EXPECT_EQ(found.activations[0].producer->rows.row(3), 15U);
  EXPECT_EQ(found.activations[0].producer->bias, 1U);
  EXPECT_THAT(refusal(kFused, {{"qkv", {15, 4}}, {"qkv.bias", {15}}, {"o", {4, 8}}}),
              HasSubstr("its producer qkv has 15 rows, and the range goes beyond them"));
  EXPECT_THAT(refusal(kFused, {{"qkv", {16, 4}}, {"qkv.bias", {12}}, {"o", {4, 8}}}),
              HasSubstr("the bias qkv.bias of its producer qkv must have 16 values"));
}

constexpr const char* kTied =
    R"("tensors": [{"name": "embed", "optional": true}, {"name": "head", "optional": true}],
  "tied": {"if": "flag", "tensors": ["embed", "head"]})";

TEST(Language, TiedTensorsMayBeStoredOnceOrTwice) {
  EXPECT_FALSE(resolve(kTied, {{"embed", {4, 2}}}).tied);
  const auto tied = resolve(kTied, {{"head", {4, 2}}, {"embed", {4, 2}}}).tied;
  ASSERT_TRUE(tied);
  EXPECT_EQ(tied->kept, 1U);
  EXPECT_EQ(tied->dropped, 0U);
  EXPECT_THAT(refusal(kTied, {{"head", {4, 3}}, {"embed", {4, 2}}}),
              HasSubstr("embed and head are one tensor (flag), but they differ in shape or type"));
}

TEST(Language, PartsAndPatternsOfWhatIsCopied) {
  const ResolvedArchitecture found =
      resolve(R"("tensors": [{"name": "x", "role": "linear", "quantize": true, "part": "mtp"}],
                 "copied": ["visual.*", "l.{layer}.extra"])",
              {{"x", {2, 2}}, {"model.visual.a.b", {3}}, {"l.2.extra", {1}}});
  EXPECT_EQ(found.tensors[0].part, "mtp");
  EXPECT_EQ(found.tensors[1].role, TensorRole::kOther);
}

TEST(Language, AnExtendingFileReplacesByNameAndLeavesOut) {
  const ResolvedArchitecture seed = resolve_architecture(
      R"({"schema": 1, "name": "part", "extends": "dflash", "without": ["qkv"],
          "conditions": {"never": "0"},
          "tensors": [{"name": "fc.weight", "if": "never"}],
          "activations": [{"name": "final", "if": "never", "readers": ["fc.weight"], "no_fold": "x"}]})",
      R"({"num_hidden_layers": 0, "hidden_size": 4, "intermediate_size": 4, "num_attention_heads": 1,
          "target_layer_ids": [1]})",
      stored({{"hidden_norm.weight", {4}}, {"norm.weight", {4}}}),
      false);
  EXPECT_THAT(seed.activations, IsEmpty());
  EXPECT_THAT(refusal(R"("extends": "dflash", "without": ["nothing"])", {}),
              HasSubstr("nothing is no tensor and no activation of the extended file"));
}

TEST(Language, TheModelTypeChoosesAFileIfNoClassDoes) {
  const std::string by_class = find_architecture(R"({"architectures": ["LlamaForCausalLM"]})");
  EXPECT_THAT(by_class, HasSubstr("\"name\": \"llama\""));
  EXPECT_THAT(models_of(by_class), testing::Contains("MistralForCausalLM"));
  EXPECT_EQ(choose_architecture("", R"({"architectures": ["LlamaForCausalLM"]})"), by_class);
  EXPECT_EQ(choose_architecture("llama", "{}"), by_class);
}

TEST(Language, EntriesAreCounted) {
  const ArchitectureMatches matches =
      match_architecture(file(R"("tensors": [{"name": "l.{layer}.a", "optional": true}])"),
                         kConfig,
                         stored({{"l.0.a", {1}}, {"l.2.a", {1}}, {"other", {1}}}));
  ASSERT_EQ(matches.tensors.size(), 1U);
  EXPECT_EQ(matches.tensors[0].num_found, 2U);
  EXPECT_EQ(matches.tensors[0].num_absent, 1U);
  EXPECT_THAT(matches.unknown, ElementsAre("other"));
}

}  // namespace
}  // namespace quantmill
