// The built-in architectures against headers of released models (tests/golden/families, written by
// tests/interop/make_families.py): every tensor is known and has the shape that config.json says,
// and as many vectors can take a scale as were counted by hand.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/reader.h"
#include "plan/architecture.h"
#include "plan/quark_config.h"
#include "plan/selection.h"
#include "tests/support/expect_error.h"
#include "tests/support/released_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;

using test::add_tensors;
using test::read_released_model;
using test::released_models;
using Model = test::ReleasedModel;

constexpr std::size_t kAll = 1'000'000;
constexpr std::size_t kSmall = 10'000;

// Of models with fewer tensors than `limit`.
std::vector<std::string> model_names(std::size_t limit) {
  std::vector<std::string> names;
  for (const auto& [name, file] : released_models()) {
    if (read_released_model(name).num_tensors < limit) {
      names.push_back(name);
    }
  }
  return names;
}

ResolvedArchitecture resolve(const Model& model, const std::vector<SourceTensor>& tensors) {
  return resolve_architecture(
      find_architecture(model.config), model.config, tensors, /*allow_unknown=*/false);
}

// What else would the rounding of a linear be weighed by?
void expect_quantizable_linears_are_readers(const ResolvedArchitecture& resolved) {
  std::vector<bool> is_read(resolved.tensors.size(), false);
  for (const Activation& activation : resolved.activations) {
    for (const std::size_t reader : activation.readers) {
      is_read[reader] = true;
    }
  }
  for (std::size_t i = 0; i < resolved.tensors.size(); ++i) {
    const ModelTensor& tensor = resolved.tensors[i];
    EXPECT_TRUE(is_read[i] || !tensor.quantizable) << tensor.name;
  }
}

class Families : public testing::TestWithParam<std::string> {};

class SmallFamilies : public Families {};

TEST_P(Families, EveryTensorIsKnownAndEveryFoldIsThere) {
  const Model model = read_released_model(GetParam());
  ASSERT_EQ(model.tensors.size(), model.num_tensors);
  const ResolvedArchitecture resolved = resolve(model, model.tensors);
  EXPECT_EQ(resolved.name, model.architecture);
  EXPECT_EQ(std::ranges::count_if(resolved.fold_groups,
                                  [](const FoldGroup& group) {
                                    return group.no_fold_reason.empty() && group.part.empty();
                                  }),
            model.num_folds);
  expect_quantizable_linears_are_readers(resolved);
}

TEST_P(SmallFamilies, AnUnknownAMissingAndAMisshapenTensorAreNamed) {
  const Model model = read_released_model(GetParam());
  const auto refusal = [&](const std::vector<SourceTensor>& tensors) {
    return test::error_of([&] { resolve(model, tensors); }).message();
  };
  std::vector<SourceTensor> tensors = model.tensors;
  add_tensors("model.layers.0.surprise.weight", {2, 2}, tensors);
  EXPECT_THAT(refusal(tensors), HasSubstr("model.layers.0.surprise.weight"));

  tensors = model.tensors;
  const auto norm = std::ranges::find_if(tensors, [](const SourceTensor& tensor) {
    return tensor.entry.name == "norm.weight" || tensor.entry.name.ends_with("model.norm.weight");
  });
  ASSERT_NE(norm, tensors.end());
  const std::string name = norm->entry.name;
  ++norm->entry.shape.back();
  EXPECT_THAT(refusal(tensors), HasSubstr(name));
  tensors.erase(norm);
  EXPECT_THAT(refusal(tensors), HasSubstr("norm.weight is missing"));
}

// Of a release, resolved once for all tests.
const ResolvedArchitecture& resolved_release(const std::string& name) {
  static std::map<std::string, ResolvedArchitecture> all;
  const auto found = all.find(name);
  if (found != all.end()) {
    return found->second;
  }
  const Model model = read_released_model(name);
  return all.emplace(name, resolve(model, model.tensors)).first->second;
}

// Quantizing every linear that may be, of these parts too, but for what matches `keep`.
std::vector<std::string> exclude_list_of(const std::string& name,
                                         const std::vector<std::string>& parts = {},
                                         const std::vector<std::string>& keep = {},
                                         Layout layout = Layout::kQuark) {
  const ResolvedArchitecture& resolved = resolved_release(name);
  Recipe recipe;
  recipe.include = parts;
  recipe.keep = keep;
  std::vector<bool> quantized;
  for (const SchemeChoice& choice : choose_schemes(resolved, recipe)) {
    quantized.push_back(choice.is_quantized());
  }
  return exclude_list(resolved, quantized, layout);
}

std::vector<std::string> with(const std::string& text, std::vector<std::string> entries) {
  std::erase_if(entries,
                [&](const std::string& entry) { return entry.find(text) == std::string::npos; });
  return entries;
}

// The linears of a part, by what servers fuse them into: how many there are of each, "" for none.
using FusedCounts = std::map<std::string, std::size_t>;

FusedCounts linears_of_part(const ResolvedArchitecture& resolved) {
  FusedCounts counts;
  for (const ModelTensor& tensor : resolved.tensors) {
    if (tensor.part == "mtp" && tensor.quantizable) {
      ++counts[tensor.fused_group];
    }
  }
  return counts;
}

FusedCounts linears_of_part(const std::string& name) {
  return linears_of_part(resolved_release(name));
}

TEST(ReleasedFamilies, CopiedPartsAreExcludedAsReadersSpellThem) {
  EXPECT_THAT(exclude_list_of("gemma_3_4b"),
              ElementsAre("*multi_modal_projector.*",
                          "*vision_tower.*",
                          "lm_head",
                          "re:.*multi_modal_projector\\..*",
                          "re:.*vision_tower\\..*"));
  EXPECT_THAT(exclude_list_of("deepseek_v3"),
              IsSupersetOf({"*layers.61.*", "re:.*layers\\.61\\..*", "model.layers.3.mlp.gate"}));
  EXPECT_THAT(exclude_list_of("phi_4"), ElementsAre("lm_head", "re:.*lm_head$"));
}

TEST(ReleasedFamilies, LayoutFp8ListsCopiedPartsMatrixByMatrix) {
  const std::vector<std::string> gemma = exclude_list_of("gemma_3_4b", {}, {}, Layout::kFp8);
  EXPECT_THAT(with("*", gemma), ElementsAre());
  EXPECT_THAT(gemma, Contains("vision_tower.encoder.layers.0.self_attn.q_proj"));
  const std::vector<std::string> deepseek = exclude_list_of("deepseek_v3", {}, {}, Layout::kFp8);
  EXPECT_THAT(deepseek,
              IsSupersetOf({"model.layers.61.eh_proj",
                            "model.layers.61.self_attn.kv_a_proj_with_mqa",
                            "model.layers.61.self_attn.fused_qkv_a_proj",
                            "model.layers.61.mlp.experts",
                            "model.layers.61.mlp.shared_experts.gate_up_proj"}));
  EXPECT_EQ(with("*", deepseek).size(), 1);
}

TEST(ReleasedFamilies, MultiTokenPredictionHasTheLinearsOfALayerOnRequest) {
  const FusedCounts mla = {{"", 4},  // q_b, kv_b, o, the shared expert's down
                           {"layers.61.self_attn.fused_qkv_a_proj", 2},
                           {"layers.61.mlp.experts", 256 * 3},
                           {"layers.61.mlp.shared_experts.gate_up_proj", 2}};
  EXPECT_EQ(linears_of_part("deepseek_v3"), mla);
  EXPECT_EQ(linears_of_part("deepseek_v3_2"), mla);  // and no indexer's
  EXPECT_EQ(linears_of_part("glm_4_5_air"),
            (FusedCounts{{"", 2},
                         {"layers.46.self_attn.qkv_proj", 3},
                         {"layers.46.mlp.experts", 128 * 3},
                         {"layers.46.mlp.shared_experts.gate_up_proj", 2}}));
  EXPECT_EQ(linears_of_part("qwen3_next_80b"),
            (FusedCounts{{"", 2},
                         {"mtp.layers.0.self_attn.qkv_proj", 3},
                         {"mtp.layers.0.mlp.experts", 512 * 3},
                         {"mtp.layers.0.mlp.shared_expert.gate_up_proj", 2}}));
  EXPECT_EQ(
      linears_of_part("tiny_qwen3_5"),
      (FusedCounts{
          {"", 2}, {"mtp.layers.0.self_attn.qkv_proj", 3}, {"mtp.layers.0.mlp.gate_up_proj", 2}}));
  EXPECT_EQ(linears_of_part("tiny_qwen3_5_moe_vl"),
            (FusedCounts{{"", 2},
                         {"mtp.layers.0.self_attn.qkv_proj", 3},
                         {"mtp.layers.0.mlp.experts", 4 * 2},  // of tensors that hold all experts
                         {"mtp.layers.0.mlp.shared_expert.gate_up_proj", 2}}));
  EXPECT_TRUE(linears_of_part("llama_3_1_8b").empty());
  EXPECT_TRUE(linears_of_part("kimi_k2").empty());  // released without
}

// Kimi K2 with the layer that its config.json has a key for.
TEST(ReleasedFamilies, AFamilyOfAnothersLayersHasItsMultiTokenPredictionToo) {
  Model model = read_released_model("kimi_k2");
  model.config.replace(
      model.config.find("\"num_nextn_predict_layers\":0"), 28, "\"num_nextn_predict_layers\":1");
  std::vector<SourceTensor> more;
  for (SourceTensor tensor : model.tensors) {
    if (const std::string layer = "model.layers.60."; tensor.entry.name.starts_with(layer)) {
      tensor.entry.name.replace(0, layer.size(), "model.layers.61.");
      more.push_back(std::move(tensor));
    }
  }
  model.tensors.insert(model.tensors.end(), more.begin(), more.end());
  add_tensors("model.layers.61.eh_proj.weight", {7168, 14336}, model.tensors);
  const FusedCounts counts = linears_of_part(resolve(model, model.tensors));
  EXPECT_EQ(counts.at("layers.61.mlp.experts"), 384 * 3);
  EXPECT_EQ(counts.at("layers.61.self_attn.fused_qkv_a_proj"), 2);
}

TEST(ReleasedFamilies, LayersOfMultiTokenPredictionFoldAsTheModelsOwn) {
  const auto folds = [](const std::string& name) {
    std::size_t count = 0;
    for (const FoldGroup& group : resolved_release(name).fold_groups) {
      count += std::size_t{group.part == "mtp" && group.no_fold_reason.empty()};
    }
    return count;
  };
  EXPECT_EQ(folds("deepseek_v3"), 5 + 1 + 256);
  EXPECT_EQ(folds("glm_4_5_air"), 3 + 1 + 128);
  EXPECT_EQ(folds("qwen3_next_80b"), 3 + 1 + 512);
  EXPECT_EQ(folds("tiny_qwen3_5"), 4);
  EXPECT_EQ(folds("tiny_qwen3_5_moe_vl"), 3 + 1 + 4);
}

TEST(ReleasedFamilies, WhatStaysOfAQuantizedPartIsExcludedByName) {
  for (const Layout layout : {Layout::kQuark, Layout::kCompressedTensors, Layout::kFp8}) {
    EXPECT_THAT(with("46", exclude_list_of("glm_4_5_air", {"mtp"}, {}, layout)),
                ElementsAre("model.layers.46.eh_proj",
                            "model.layers.46.embed_tokens",
                            "model.layers.46.mlp.gate",
                            "model.layers.46.shared_head.head"));
    EXPECT_THAT(with("mtp", exclude_list_of("tiny_qwen3_5", {"mtp"}, {}, layout)),
                ElementsAre("mtp.fc"));
    EXPECT_THAT(
        with("mtp", exclude_list_of("tiny_qwen3_5_moe_vl", {"mtp"}, {}, layout)),
        ElementsAre("mtp.fc", "mtp.layers.0.mlp.gate", "mtp.layers.0.mlp.shared_expert_gate"));
    EXPECT_THAT(with("61", exclude_list_of("deepseek_v3", {"mtp"}, {}, layout)),
                ElementsAre("model.layers.61.eh_proj",
                            "model.layers.61.embed_tokens",
                            "model.layers.61.mlp.gate",
                            "model.layers.61.shared_head.head"));
  }
  EXPECT_THAT(with("mtp", exclude_list_of("tiny_qwen3_5_moe_vl", {"mtp"}, {"mtp*mlp.experts.*"})),
              ElementsAre("mtp.fc",
                          "mtp.layers.0.mlp.experts",
                          "mtp.layers.0.mlp.experts.down_proj",
                          "mtp.layers.0.mlp.experts.gate_up_proj",
                          "mtp.layers.0.mlp.gate",
                          "mtp.layers.0.mlp.shared_expert_gate"));
}

TEST(ReleasedFamilies, WhatServersFuseOfAPartHasOneScheme) {
  EXPECT_THAT(test::error_of([] {
                exclude_list_of("tiny_qwen3_5", {"mtp"}, {"mtp.layers.0.self_attn.k_proj"});
              }).message(),
              HasSubstr("servers fuse both into mtp.layers.0.self_attn.qkv_proj"));
}

constexpr auto kName = [](const auto& model) { return model.param; };

INSTANTIATE_TEST_SUITE_P(Released, Families, testing::ValuesIn(model_names(kAll)), kName);
INSTANTIATE_TEST_SUITE_P(Released, SmallFamilies, testing::ValuesIn(model_names(kSmall)), kName);

}  // namespace
}  // namespace quantmill
