#include "plan/architecture.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "base/error.h"
#include "checkpoint/reader.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string tiny_config() {
  return test::read_text(test::golden("dflash2-tiny/config.json"));
}

std::vector<SourceTensor> tiny_tensors() {
  return Checkpoint::open(test::golden("dflash2-tiny")).tensors();
}

ResolvedArchitecture resolve_tiny(const std::string& name = "dflash2") {
  return resolve_architecture(load_architecture(name), tiny_config(), tiny_tensors(), false);
}

SourceTensor tensor(std::string name, std::vector<std::uint64_t> shape) {
  SourceTensor tensor;
  tensor.entry.name = std::move(name);
  tensor.entry.shape = std::move(shape);
  tensor.entry.dtype = DType::kBf16;
  return tensor;
}

SourceTensor& named(std::vector<SourceTensor>& tensors, const std::string& name) {
  return *std::find_if(
      tensors.begin(), tensors.end(), [&](const auto& t) { return t.entry.name == name; });
}

const ModelTensor& named(const ResolvedArchitecture& architecture, const std::string& name) {
  return *std::find_if(architecture.tensors.begin(),
                       architecture.tensors.end(),
                       [&](const auto& t) { return t.name == name; });
}

const Activation& activation_named(const ResolvedArchitecture& architecture,
                                   const std::string& name) {
  return *std::find_if(architecture.activations.begin(),
                       architecture.activations.end(),
                       [&](const auto& a) { return a.name == name; });
}

std::vector<std::string> names_of(const ResolvedArchitecture& architecture,
                                  const std::vector<std::size_t>& tensors) {
  std::vector<std::string> names;
  for (const std::size_t index : tensors) {
    names.push_back(architecture.tensors[index].name);
  }
  return names;
}

std::vector<std::string> group_names(const ResolvedArchitecture& architecture) {
  std::vector<std::string> names;
  for (const FoldGroup& group : architecture.fold_groups) {
    names.push_back(group.name);
  }
  return names;
}

// Names of the activations of each fold group.
std::map<std::string, std::vector<std::string>> groups_of(
    const ResolvedArchitecture& architecture) {
  std::map<std::string, std::vector<std::string>> groups;
  for (const FoldGroup& group : architecture.fold_groups) {
    for (const std::size_t index : group.activations) {
      groups[group.name].push_back(architecture.activations[index].name);
    }
  }
  return groups;
}

// The message of the kInput error that resolving gives, or "" if it gives none.
std::string refusal(const std::string& json,
                    const std::string& config,
                    const std::vector<SourceTensor>& tensors,
                    bool allow_unknown = false) {
  try {
    resolve_architecture(json, config, tensors, allow_unknown);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    return error.message();
  }
  return "";
}

// A norm read by two linears, one of which also reads another norm.
constexpr const char* kSmallConfig = R"({"layers": 1, "hidden": 4, "inner": 6, "list": [1, 2]})";
constexpr const char* kSmallTensors = R"(
  "tensors": [
    {"name": "a.weight", "shape": ["hidden"], "role": "norm"},
    {"name": "b.weight", "shape": ["hidden"], "role": "norm"},
    {"name": "c.weight", "shape": ["hidden"], "role": "norm"},
    {"name": "x.weight", "shape": ["inner", "hidden"], "role": "linear"},
    {"name": "y.weight", "shape": ["inner", "hidden"], "role": "linear"},
    {"name": "z.weight", "shape": ["hidden", "inner"], "role": "linear"},
    {"name": "y.bias", "optional": true}
  ])";

std::string small(const std::string& activations, const std::string& tensors = kSmallTensors) {
  return R"({"schema": 1, "name": "small",
            "parameters": {"layers": "layers", "hidden": "hidden", "inner": "inner"},
            "indices": {"layer": "layers"}, )" +
         tensors + R"(, "activations": [)" + activations + "]}";
}

std::vector<SourceTensor> small_checkpoint() {
  return {tensor("a.weight", {4}),
          tensor("b.weight", {4}),
          tensor("c.weight", {4}),
          tensor("x.weight", {6, 4}),
          tensor("y.weight", {6, 4}),
          tensor("z.weight", {4, 6})};
}

TEST(ResolveDFlash2, AccountsForEveryTensorInTheCheckpointsOrder) {
  const std::vector<SourceTensor> source = tiny_tensors();
  const ResolvedArchitecture architecture = resolve_tiny();
  ASSERT_EQ(architecture.tensors.size(), 36U);
  for (std::size_t i = 0; i < source.size(); ++i) {
    EXPECT_EQ(architecture.tensors[i].name, source[i].entry.name);
  }
}

TEST(ResolveDFlash2, QuantizesTheSevenLinearsOfALayerAndFc) {
  std::vector<std::string> names;
  for (const ModelTensor& model_tensor : resolve_tiny().tensors) {
    if (model_tensor.quantizable) {
      names.push_back(model_tensor.module());
    }
  }
  EXPECT_THAT(names,
              testing::UnorderedElementsAre("fc",
                                            "layers.0.self_attn.q_proj",
                                            "layers.0.self_attn.k_proj",
                                            "layers.0.self_attn.v_proj",
                                            "layers.0.self_attn.o_proj",
                                            "layers.0.mlp.gate_proj",
                                            "layers.0.mlp.up_proj",
                                            "layers.0.mlp.down_proj",
                                            "layers.1.self_attn.q_proj",
                                            "layers.1.self_attn.k_proj",
                                            "layers.1.self_attn.v_proj",
                                            "layers.1.self_attn.o_proj",
                                            "layers.1.mlp.gate_proj",
                                            "layers.1.mlp.up_proj",
                                            "layers.1.mlp.down_proj"));
}

TEST(ResolveDFlash2, DescribesTensors) {
  const ResolvedArchitecture architecture = resolve_tiny();
  const ModelTensor& up = named(architecture, "layers.1.mlp.up_proj.weight");
  EXPECT_EQ(up.role, TensorRole::kLinear);
  EXPECT_EQ(up.fused_group, "layers.1.mlp.gate_up_proj");
  EXPECT_EQ(up.layer, 1U);
  const ModelTensor& norm = named(architecture, "norm.weight");
  EXPECT_EQ(norm.role, TensorRole::kNorm);
  EXPECT_EQ(norm.layer, std::nullopt);
  const ModelTensor& codebook = named(architecture, "candidate_selector.successor_codebook");
  EXPECT_EQ(codebook.role, TensorRole::kOther);
  EXPECT_EQ(codebook.module(), "candidate_selector.successor_codebook");
  EXPECT_EQ(architecture.server_layer_offset, 12U);
}

TEST(ResolveDFlash2, MakesOneGroupOfAllAttentionInputs) {
  const ResolvedArchitecture architecture = resolve_tiny();
  EXPECT_THAT(groups_of(architecture)["qkv"], ElementsAre("qkv", "layers.0.qkv", "layers.1.qkv"));
}

TEST(ResolveDFlash2, HasTheseGroupsInThisOrder) {
  EXPECT_THAT(group_names(resolve_tiny()),
              ElementsAre("qkv",
                          "layers.0.gate_up",
                          "layers.0.down",
                          "layers.0.o",
                          "layers.1.gate_up",
                          "layers.1.down",
                          "layers.1.o",
                          "fc",
                          "final"));
}

TEST(ResolveDFlash2, SaysWhichGroupsCannotBeFolded) {
  std::vector<std::string> impossible;
  for (const FoldGroup& group : resolve_tiny().fold_groups) {
    if (!group.no_fold_reason.empty()) {
      impossible.push_back(group.name + ": " + group.no_fold_reason);
    }
  }
  EXPECT_THAT(
      impossible,
      ElementsAre("fc: its input is made by the target model, outside this checkpoint",
                  "final: the target model's lm_head reads it too, and is not in this checkpoint"));
}

TEST(ResolveDFlash2, ChannelsAreThoseOfTheProducer) {
  std::vector<std::size_t> channels;
  for (const FoldGroup& group : resolve_tiny().fold_groups) {
    channels.push_back(group.num_channels);
  }
  // hidden 96, intermediate 256, 2 key-value heads of 32, 3 targets of 96.
  EXPECT_THAT(channels, ElementsAre(96, 96, 256, 64, 96, 256, 64, 288, 96));
}

TEST(ResolveDFlash2, ScalesTheConvCoefficientsWithTheNormTheyRead) {
  const ResolvedArchitecture architecture = resolve_tiny();
  EXPECT_THAT(names_of(architecture, activation_named(architecture, "layers.1.qkv").readers),
              ElementsAre("layers.1.attention_conv.kernel_projection.weight",
                          "layers.1.self_attn.q_proj.weight",
                          "layers.1.self_attn.k_proj.weight",
                          "layers.1.self_attn.v_proj.weight"));
  EXPECT_THAT(names_of(architecture, activation_named(architecture, "layers.0.gate_up").readers),
              ElementsAre("layers.0.mlp_conv.kernel_projection.weight",
                          "layers.0.mlp.gate_proj.weight",
                          "layers.0.mlp.up_proj.weight"));
  EXPECT_THAT(names_of(architecture, activation_named(architecture, "qkv").readers),
              ElementsAre("layers.0.self_attn.k_proj.weight",
                          "layers.1.self_attn.k_proj.weight",
                          "layers.0.self_attn.v_proj.weight",
                          "layers.1.self_attn.v_proj.weight"));
}

TEST(ResolveDFlash2, NamesProducers) {
  const ResolvedArchitecture architecture = resolve_tiny();
  const auto producer_of = [&](const std::string& name) {
    const Activation& activation = activation_named(architecture, name);
    return architecture.tensors[activation.producer->tensor].name;
  };
  EXPECT_EQ(producer_of("qkv"), "hidden_norm.weight");
  EXPECT_EQ(producer_of("layers.1.qkv"), "layers.1.input_layernorm.weight");
  EXPECT_EQ(producer_of("layers.1.gate_up"), "layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(producer_of("layers.1.down"), "layers.1.mlp.up_proj.weight");
  EXPECT_EQ(producer_of("layers.1.o"), "layers.1.self_attn.v_proj.weight");
  EXPECT_EQ(activation_named(architecture, "layers.1.o").producer->kind, ProducerKind::kLinearRows);
  EXPECT_EQ(activation_named(architecture, "layers.1.qkv").producer->kind, ProducerKind::kNorm);
}

TEST(ResolveDFlash2, NamesStatistics) {
  const ResolvedArchitecture architecture = resolve_tiny();
  EXPECT_THAT(activation_named(architecture, "qkv").recorded_as, IsEmpty());
  EXPECT_THAT(activation_named(architecture, "layers.1.qkv").recorded_as,
              ElementsAre("layers.1.self_attn.qkv_proj",
                          "layers.1.attention_conv.kernel_projection",
                          "layers.1.self_attn.q_proj",
                          "layers.1.self_attn.k_proj",
                          "layers.1.self_attn.v_proj"));
  EXPECT_EQ(activation_named(architecture, "layers.0.o").recorded_as.front(),
            "layers.0.self_attn.o_proj");
  EXPECT_TRUE(activation_named(architecture, "layers.0.o").statistics_optional);
  EXPECT_FALSE(activation_named(architecture, "layers.0.down").statistics_optional);
  EXPECT_THAT(architecture.known_statistics, ElementsAre("ctx_kv"));
}

TEST(ResolveDFlash2, GroupsTheOutputProjectionsColumnsByKeyValueHead) {
  // 4 query heads on 2 key-value heads of 32: columns 0-31 and 32-63 read head 0, the rest head 1.
  const ResolvedArchitecture architecture = resolve_tiny();
  const ColumnMap columns = activation_named(architecture, "layers.0.o").columns;
  EXPECT_EQ(columns, (ColumnMap{0, 2, 2, 32}));
  EXPECT_EQ(columns.num_columns(), 128U);
  EXPECT_EQ(columns.channel_of(0), 0U);
  EXPECT_EQ(columns.channel_of(31), 31U);
  EXPECT_EQ(columns.channel_of(32), 0U);
  EXPECT_EQ(columns.channel_of(63), 31U);
  EXPECT_EQ(columns.channel_of(64), 32U);
  EXPECT_EQ(columns.channel_of(96 + 5), 37U);
  EXPECT_EQ(columns.channel_of(127), 63U);
  EXPECT_EQ(activation_named(architecture, "layers.0.down").columns, (ColumnMap{0, 1, 1, 256}));
}

TEST(ResolveDFlash2, TakesThePrefixAsWell) {
  std::vector<SourceTensor> tensors = tiny_tensors();
  for (SourceTensor& source : tensors) {
    source.entry.name = "model." + source.entry.name;
  }
  const ResolvedArchitecture architecture =
      resolve_architecture(load_architecture("dflash2"), tiny_config(), tensors, false);
  EXPECT_EQ(named(architecture, "model.fc.weight").module(), "model.fc");
  EXPECT_THAT(names_of(architecture, activation_named(architecture, "fc").readers),
              ElementsAre("model.fc.weight"));
}

TEST(ResolveDFlash2, DividesTheBiasOfAProducer) {
  std::vector<SourceTensor> tensors = tiny_tensors();
  tensors.push_back(tensor("layers.1.self_attn.v_proj.bias", {64}));
  const ResolvedArchitecture architecture =
      resolve_architecture(load_architecture("dflash2"), tiny_config(), tensors, false);
  EXPECT_EQ(activation_named(architecture, "layers.1.o").producer->bias, 36U);
  EXPECT_EQ(activation_named(architecture, "layers.0.o").producer->bias, std::nullopt);
}

TEST(ResolveDFlash2, CopiesTheOptionalTensors) {
  std::vector<SourceTensor> tensors = tiny_tensors();
  tensors.push_back(tensor("embed_tokens.weight", {320, 96}));
  tensors.push_back(tensor("lm_head.weight", {320, 96}));
  tensors.push_back(tensor("mask_embedding", {96}));
  tensors.push_back(tensor("d2t", {320}));
  tensors.push_back(tensor("t2d", {320}));
  const ResolvedArchitecture architecture =
      resolve_architecture(load_architecture("dflash2"), tiny_config(), tensors, false);
  EXPECT_FALSE(named(architecture, "embed_tokens.weight").quantizable);
  EXPECT_THAT(names_of(architecture, activation_named(architecture, "final").readers),
              ElementsAre("candidate_selector.hidden_projection.weight", "lm_head.weight"));
}

TEST(ResolveDFlash2Seed, BelievesInOneScalePerLayer) {
  const ResolvedArchitecture architecture = resolve_tiny("dflash2-seed");
  EXPECT_THAT(group_names(architecture),
              ElementsAre("layers.0.qkv",
                          "layers.0.gate_up",
                          "layers.0.down",
                          "layers.1.qkv",
                          "layers.1.gate_up",
                          "layers.1.down"));
  EXPECT_THAT(
      architecture.known_statistics,
      ElementsAre("ctx_kv", "fc", "layers.0.self_attn.o_proj", "layers.1.self_attn.o_proj"));
}

TEST(ResolveDFlash1, IsDFlash2WithoutConvAndSelector) {
  std::vector<SourceTensor> tensors = tiny_tensors();
  tensors.erase(std::remove_if(tensors.begin(),
                               tensors.end(),
                               [](const SourceTensor& source) {
                                 return source.entry.name.find("conv") != std::string::npos ||
                                        source.entry.name.find("selector") != std::string::npos;
                               }),
                tensors.end());
  // The names of another release of this family.
  named(tensors, "fc.weight").entry.name = "encoder.fc.weight";
  named(tensors, "hidden_norm.weight").entry.name = "encoder.output_norm_enc.weight";
  const ResolvedArchitecture architecture =
      resolve_architecture(load_architecture("dflash"), tiny_config(), tensors, false);
  EXPECT_EQ(architecture.tensors.size(), 25U);
  auto groups = groups_of(architecture);
  EXPECT_THAT(groups["qkv"], ElementsAre("qkv", "layers.0.qkv", "layers.1.qkv"));
  EXPECT_EQ(groups.count("final"), 0U);
  EXPECT_THAT(names_of(architecture, activation_named(architecture, "layers.0.qkv").readers),
              ElementsAre("layers.0.self_attn.q_proj.weight",
                          "layers.0.self_attn.k_proj.weight",
                          "layers.0.self_attn.v_proj.weight"));
}

TEST(Resolve, RefusesAnUnknownTensorByName) {
  std::vector<SourceTensor> tensors = tiny_tensors();
  tensors.push_back(tensor("layers.0.self_attn.sinks", {4}));
  const std::string json = load_architecture("dflash2");
  EXPECT_THAT(refusal(json, tiny_config(), tensors),
              testing::AllOf(HasSubstr("architecture dflash2"),
                             HasSubstr("layers.0.self_attn.sinks"),
                             HasSubstr("--allow-unknown")));
  const ResolvedArchitecture allowed = resolve_architecture(json, tiny_config(), tensors, true);
  EXPECT_EQ(allowed.tensors.back().role, TensorRole::kOther);
  EXPECT_FALSE(allowed.tensors.back().quantizable);
}

TEST(Resolve, RefusesALayerThatConfigDoesNotState) {
  std::vector<SourceTensor> tensors = tiny_tensors();
  tensors.push_back(tensor("layers.2.input_layernorm.weight", {96}));
  EXPECT_THAT(refusal(load_architecture("dflash2"), tiny_config(), tensors),
              HasSubstr("layers.2.input_layernorm.weight"));
}

TEST(Resolve, RefusesAMissingTensorByName) {
  std::vector<SourceTensor> tensors = tiny_tensors();
  named(tensors, "layers.1.mlp.up_proj.weight").entry.name = "layers.1.mlp.up_proj.wait";
  EXPECT_THAT(
      refusal(load_architecture("dflash2"), tiny_config(), tensors),
      HasSubstr("tensor layers.1.mlp.up_proj.weight is missing from the checkpoint (config.json "
                "states 2 layers)"));
}

TEST(Resolve, RefusesAnotherShape) {
  std::vector<SourceTensor> tensors = tiny_tensors();
  named(tensors, "layers.0.self_attn.k_proj.weight").entry.shape = {96, 64};
  EXPECT_THAT(
      refusal(load_architecture("dflash2"), tiny_config(), tensors),
      HasSubstr("tensor layers.0.self_attn.k_proj.weight has shape [96, 64], wanted [64, 96] = "
                "[kv_heads * head_dim, hidden] by config.json"));
}

TEST(Resolve, RefusesAConfigThatLacksAParameter) {
  std::string config = tiny_config();
  config.replace(config.find("\"intermediate_size\""), 19, "\"intermediate_sise\"");
  EXPECT_THAT(refusal(load_architecture("dflash2"), config, tiny_tensors()),
              HasSubstr("config.json: intermediate_size is missing"));
}

TEST(Resolve, RefusesAParameterThatIsNoInteger) {
  std::string config = tiny_config();
  config.replace(config.find("\"hidden_size\": 96"), 17, "\"hidden_size\": 96.5");
  EXPECT_THAT(refusal(load_architecture("dflash2"), config, tiny_tensors()),
              HasSubstr("hidden_size must be a non-negative integer, found the number 96.5"));
}

TEST(Resolve, RefusesLayerCountsWithoutEnd) {
  std::string json = small("", R"("tensors": [{"name": "t.{layer}", "optional": true}])");
  EXPECT_THAT(refusal(json, R"({"layers": 1000000000000, "hidden": 4, "inner": 6})", {}),
              HasSubstr("layer counts"));
}

TEST(Resolve, RefusesAReaderWithOtherColumns) {
  const std::string json = small(
      R"({"name": "n", "producer": {"norm": "a.weight"}, "readers": ["x.weight", "z.weight"]})");
  EXPECT_THAT(refusal(json, kSmallConfig, small_checkpoint()),
              HasSubstr("activation n: its reader z.weight has 6 columns, wanted 4"));
}

TEST(Resolve, RefusesAProducerWithOtherChannels) {
  const std::string json =
      small(R"({"name": "n", "producer": {"rows": "z.weight"}, "readers": ["z.weight"]})");
  EXPECT_THAT(refusal(json, kSmallConfig, small_checkpoint()),
              HasSubstr("its producer z.weight makes 4 rows of 4, wanted 6"));
}

TEST(Resolve, RefusesAProducerOfAnotherRole) {
  EXPECT_THAT(
      refusal(small(R"({"name": "n", "producer": {"norm": "y.weight"}, "readers": ["z.weight"]})"),
              kSmallConfig,
              small_checkpoint()),
      HasSubstr("its producer y.weight is not a norm"));
  EXPECT_THAT(
      refusal(small(R"({"name": "n", "producer": {"rows": "a.weight"}, "readers": ["x.weight"]})"),
              kSmallConfig,
              small_checkpoint()),
      HasSubstr("its producer a.weight is not a linear"));
}

TEST(Resolve, RefusesTwoActivationsOfOneProducer) {
  const std::string json =
      small(R"({"name": "n", "producer": {"norm": "a.weight"}, "readers": ["x.weight"]},
               {"name": "m", "producer": {"norm": "a.weight"}, "readers": ["y.weight"]})");
  EXPECT_THAT(refusal(json, kSmallConfig, small_checkpoint()),
              HasSubstr("activations n and m have the same producer a.weight"));
}

TEST(Resolve, RefusesAGroupOfDifferentColumns) {
  const std::string json =
      small(R"({"name": "n", "producer": {"norm": "a.weight"}, "readers": ["x.weight"]},
               {"name": "m", "producer": {"norm": "b.weight"}, "readers": ["x.weight"],
                "columns": {"groups": "2", "repeats": "1", "size": "2"}})");
  EXPECT_THAT(refusal(json, kSmallConfig, small_checkpoint()),
              HasSubstr("activations n and m share readers and have different columns"));
}

TEST(Resolve, RefusesColumnsThatOverflow) {
  // 2^62 * 4 * 1 would wrap around to 0, 2^62 * 4 + ... to anything.
  const std::string json =
      small(R"({"name": "n", "producer": {"norm": "a.weight"}, "readers": ["x.weight"],
                "columns": {"groups": "4611686018427387904", "repeats": "4", "size": "1"}})");
  EXPECT_THAT(refusal(json, kSmallConfig, small_checkpoint()), HasSubstr("does not fit 64 bits"));
}

TEST(Resolve, RefusesTwoEntriesForOneTensor) {
  const std::string json = small("", R"("tensors": [{"name": "a.weight"}, {"name": "a.weight"}])");
  EXPECT_THAT(refusal(json, kSmallConfig, small_checkpoint(), true),
              HasSubstr("two entries of \"tensors\" stand for a.weight"));
}

TEST(Resolve, RefusesANameThatIsNotListed) {
  const std::string json =
      small(R"({"name": "n", "producer": {"norm": "q.weight"}, "readers": ["x.weight"]})");
  EXPECT_THAT(refusal(json, kSmallConfig, small_checkpoint()),
              HasSubstr("q.weight is not in \"tensors\""));
}

TEST(FoldGroups, JoinThroughChainsOfReaders) {
  // x reads a and b, y reads b and c: all three have one s though a and c have no reader in common.
  const std::string json =
      small(R"({"name": "a", "producer": {"norm": "a.weight"}, "readers": ["x.weight"]},
               {"name": "c", "producer": {"norm": "c.weight"}, "readers": ["y.weight"]},
               {"name": "down", "producer": {"rows": "y.weight", "bias": "y.bias"}, "readers": ["z.weight"]},
               {"name": "b", "producer": {"norm": "b.weight"}, "readers": ["x.weight", "y.weight"]})");
  const ResolvedArchitecture architecture =
      resolve_architecture(json, kSmallConfig, small_checkpoint(), false);
  EXPECT_THAT(group_names(architecture), ElementsAre("a", "down"));
  EXPECT_THAT(groups_of(architecture)["a"], ElementsAre("a", "c", "b"));
}

TEST(FoldGroups, OneActivationThatCannotBeFoldedStopsItsGroup) {
  const std::string json =
      small(R"({"name": "a", "producer": {"norm": "a.weight"}, "readers": ["x.weight"]},
               {"name": "b", "readers": ["x.weight"], "no_fold": "comes from outside"})");
  const ResolvedArchitecture architecture =
      resolve_architecture(json, kSmallConfig, small_checkpoint(), false);
  ASSERT_EQ(architecture.fold_groups.size(), 1U);
  EXPECT_EQ(architecture.fold_groups[0].no_fold_reason, "comes from outside");
}

TEST(FoldGroups, AnOptionalProducerThatIsMissingStopsItsGroup) {
  std::string json =
      small(R"({"name": "a", "producer": {"norm": "a.weight"}, "readers": ["x.weight"]})");
  json.replace(json.find(R"("role": "norm"})"), 15, R"("role": "norm", "optional": true})");
  std::vector<SourceTensor> tensors = small_checkpoint();
  tensors.erase(tensors.begin());
  const ResolvedArchitecture architecture =
      resolve_architecture(json, kSmallConfig, tensors, false);
  EXPECT_EQ(architecture.activations[0].producer.has_value(), false);
  EXPECT_EQ(architecture.fold_groups[0].no_fold_reason,
            "its producer a.weight is not in this checkpoint");
}

TEST(FoldGroups, KeepTheKindOfNorm) {
  const std::string json =
      small(R"({"name": "a", "producer": {"norm_plus_one": "a.weight"}, "readers": ["x.weight"]})");
  const ResolvedArchitecture architecture =
      resolve_architecture(json, kSmallConfig, small_checkpoint(), false);
  EXPECT_EQ(architecture.activations[0].producer->kind, ProducerKind::kNormPlusOne);
}

struct BadFile {
  const char* name;
  std::string json;
  const char* message;
};

class BadArchitectureFile : public testing::TestWithParam<BadFile> {};

TEST_P(BadArchitectureFile, IsRefusedWithTheKey) {
  EXPECT_THAT(refusal(GetParam().json, kSmallConfig, small_checkpoint()),
              HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All,
    BadArchitectureFile,
    testing::Values(
        BadFile{"NotJson", "{", "architecture file: not valid JSON"},
        BadFile{"NotAnObject", "[]", "the file must be an object, found a list"},
        BadFile{"NoSchema", R"({"name": "n"})", "the key \"schema\" is missing"},
        BadFile{"OtherSchema",
                R"({"schema": 2, "name": "n"})",
                "\"schema\" must be 1, found the number 2"},
        BadFile{"NoName", R"({"schema": 1, "tensors": []})", "the key \"name\" is missing"},
        BadFile{"NoTensors", R"({"schema": 1, "name": "n"})", "\"tensors\" is missing or empty"},
        BadFile{
            "UnknownKey", R"({"schema": 1, "name": "n", "tensor": []})", "unknown key \"tensor\""},
        BadFile{"UnknownBase",
                R"({"schema": 1, "name": "n", "extends": "q"})",
                "no built-in architecture q"},
        BadFile{"TensorsNoList",
                R"({"schema": 1, "name": "n", "tensors": {}})",
                "\"tensors\" must be a list"},
        BadFile{"TensorKey",
                R"({"schema": 1, "name": "n", "tensors": [{"name": "a", "shpae": []}]})",
                "tensor a: unknown key \"shpae\""},
        BadFile{"Role",
                R"({"schema": 1, "name": "n", "tensors": [{"name": "a", "role": "conv"}]})",
                "\"role\" is linear, norm or other, not conv"},
        BadFile{
            "QuantizedNorm",
            R"({"schema": 1, "name": "n", "tensors": [{"name": "a", "role": "norm", "quantize": true}]})",
            "only a linear can have \"quantize\""},
        BadFile{"FlagType",
                R"({"schema": 1, "name": "n", "tensors": [{"name": "a", "optional": 1}]})",
                "\"optional\" must be true or false, found the number 1"},
        BadFile{"UnknownIndex",
                R"({"schema": 1, "name": "n", "tensors": [{"name": "a.{expert}"}]})",
                "{expert} in a.{expert} is no index"},
        BadFile{"OpenBrace",
                R"({"schema": 1, "name": "n", "tensors": [{"name": "a.{layer"}]})",
                "a brace is not closed"},
        BadFile{"NoReaders",
                small(R"({"name": "n", "producer": {"norm": "a.weight"}})"),
                "\"readers\" must name"},
        BadFile{"NoProducerNoReason",
                small(R"({"name": "n", "readers": ["x.weight"]})"),
                "needs \"no_fold\""},
        BadFile{
            "TwoProducers",
            small(
                R"({"name": "n", "producer": {"norm": "a.weight", "rows": "y.weight"}, "readers": ["x.weight"]})"),
            "exactly one of norm, norm_plus_one and rows"},
        BadFile{
            "RangeOfNorm",
            small(
                R"({"name": "n", "producer": {"norm": "a.weight", "range": {"size": "2"}}, "readers": ["x.weight"]})"),
            "only \"rows\" can have a range"},
        BadFile{"TensorParallel",
                small(R"({"name": "n", "producer": {"norm": "a.weight"}, "readers": ["x.weight"],
                         "tensor_parallel": "column"})"),
                "\"tensor_parallel\" is row or absent, not column"},
        BadFile{
            "ProducerOfAllLayers",
            small(
                R"({"name": "n", "producer": {"norm": "{layer}.weight"}, "readers": ["x.weight"]})"),
            "{layer} in {layer}.weight is no index"},
        BadFile{
            "ExpressionName",
            R"({"schema": 1, "name": "n", "tensors": [{"name": "a.weight", "shape": ["width"]}]})",
            "expression \"width\": there is no parameter width"},
        BadFile{
            "ExpressionSign",
            R"({"schema": 1, "name": "n", "tensors": [{"name": "a.weight", "shape": ["2 ^ 2"]}]})",
            "'^' is not expected there"},
        BadFile{
            "ExpressionRest",
            R"({"schema": 1, "name": "n", "tensors": [{"name": "a.weight", "shape": ["9 / 2"]}]})",
            "9 can't be divided by 2"},
        BadFile{
            "ExpressionByZero",
            R"({"schema": 1, "name": "n", "tensors": [{"name": "a.weight", "shape": ["9 / 0"]}]})",
            "9 can't be divided by 0"},
        BadFile{
            "ExpressionOverflow",
            R"({"schema": 1, "name": "n", "tensors": [{"name": "a.weight", "shape": ["4294967296 * 4294967296"]}]})",
            "does not fit 64 bits"},
        BadFile{
            "ExpressionEmpty",
            R"({"schema": 1, "name": "n", "tensors": [{"name": "a.weight", "shape": ["2 *"]}]})",
            "a name, a number or a text is missing"}),
    [](const auto& test_info) { return test_info.param.name; });

TEST(FindArchitecture, ChoosesByTheModelClass) {
  EXPECT_EQ(find_architecture(tiny_config()), load_architecture("dflash2"));
  EXPECT_EQ(find_architecture(R"({"architectures": ["DFlashDraftModel"]})"),
            load_architecture("dflash"));
}

TEST(FindArchitecture, RefusesWhatItDoesNotKnow) {
  const auto message = [](const std::string& config) -> std::string {
    try {
      find_architecture(config);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      return error.message();
    }
    return "";
  };
  EXPECT_THAT(message(R"({"architectures": ["GPT"]})"),
              testing::AllOf(HasSubstr("GPT"), HasSubstr("DFlashDraftModel, DFlash2DraftModel")));
  EXPECT_THAT(message("{}"), HasSubstr("names no model class"));
  EXPECT_THAT(message(R"({"architectures": []})"), HasSubstr("names no model class"));
  EXPECT_THAT(message(R"({"architectures": [1]})"), HasSubstr("names no model class"));
  EXPECT_THAT(message("[]"), HasSubstr("names no model class"));
}

TEST(LoadArchitecture, TakesAFile) {
  const test::TemporaryFolder folder;
  test::write_text(folder.path() / "mine.json", "{}");
  EXPECT_EQ(load_architecture((folder.path() / "mine.json").string()), "{}");
}

TEST(LoadArchitecture, RefusesNeitherNameNorFile) {
  try {
    load_architecture("dflash3");
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.message(), HasSubstr("dflash, dflash2, dflash2-seed"));
  }
}

TEST(PartitionRule, KnowsRowParallelInputsOfAnyLayer) {
  for (const PartitionOf& rule :
       {partition_rule(load_architecture("dflash2")), builtin_partition_rule()}) {
    EXPECT_EQ(rule("layers.0.mlp.down_proj"), Partition::kRow);
    EXPECT_EQ(rule("layers.117.self_attn.o_proj"), Partition::kRow);
    EXPECT_EQ(rule("model.layers.1.mlp.down_proj"), Partition::kRow);
    EXPECT_EQ(rule("layers.0.self_attn.qkv_proj"), Partition::kReplicated);
    EXPECT_EQ(rule("layers.0.mlp.gate_up_proj"), Partition::kReplicated);
    EXPECT_EQ(rule("fc"), Partition::kReplicated);
    EXPECT_EQ(rule("layers..mlp.down_proj"), Partition::kReplicated);
    EXPECT_EQ(rule("layers.0.mlp.down_proj.more"), Partition::kReplicated);
    EXPECT_EQ(rule("layers.0.mlp.down_pro"), Partition::kReplicated);
    EXPECT_EQ(rule(""), Partition::kReplicated);
  }
}

}  // namespace
}  // namespace quantmill
