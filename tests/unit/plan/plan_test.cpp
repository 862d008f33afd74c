#include "plan/plan.h"

#include <algorithm>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temporary_folder.h"

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Checkpoint tiny() {
  return Checkpoint::open(test::golden("dflash2-tiny"));
}

// The inputs that the tiny drafter's folds need, all with the same mean.
Statistics uniform_statistics() {
  Statistics statistics;
  for (const std::string layer : {"layers.0", "layers.1"}) {
    for (const auto& [name, channels] : {std::pair{".self_attn.qkv_proj", 96},
                                         {".self_attn.o_proj", 128},
                                         {".mlp.gate_up_proj", 96},
                                         {".mlp.down_proj", 256}}) {
      statistics[layer + name].absmean.assign(static_cast<std::size_t>(channels), 1.0);
    }
  }
  return statistics;
}

std::size_t index_of(const Checkpoint& checkpoint, const std::string& name) {
  return checkpoint.find(name).value();
}

std::string refusal(const Statistics& statistics, const Recipe& recipe) {
  try {
    (void)make_plan(tiny(), statistics, recipe);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(MakePlan, QuantizesEveryServedLinearAndFoldsItsProducers) {
  const Checkpoint checkpoint = tiny();
  const Plan plan = make_plan(checkpoint, uniform_statistics(), Recipe());
  EXPECT_EQ(std::ranges::count(plan.tensors, Action::kQuantize, &TensorWork::action), 15);
  const auto action = [&](const std::string& name) {
    return plan.tensors[index_of(checkpoint, name)].action;
  };
  EXPECT_EQ(action("hidden_norm.weight"), Action::kFoldNorm);
  EXPECT_EQ(action("layers.0.input_layernorm.weight"), Action::kFoldNorm);
  EXPECT_EQ(action("layers.1.attention_conv.kernel_projection.weight"), Action::kFoldLinear);
  EXPECT_EQ(action("layers.0.self_attn.q_norm.weight"), Action::kCopy);
  EXPECT_EQ(action("norm.weight"), Action::kCopy);
  EXPECT_EQ(action("candidate_selector.predecessor_codebook"), Action::kCopy);
}

TEST(MakePlan, PlacesCodesAndScalesWithoutHoles) {
  const Checkpoint checkpoint = tiny();
  const Plan plan = make_plan(checkpoint, uniform_statistics(), Recipe());
  ASSERT_EQ(plan.shards.size(), 1U);
  std::vector<OutputPlace> places;
  for (const TensorWork& work : plan.tensors) {
    places.insert(places.end(), work.parts.begin(), work.parts.end());
  }
  std::ranges::sort(places, {}, &OutputPlace::file_offset);
  std::uint64_t position = plan.shards[0].header.size();
  for (const OutputPlace& place : places) {
    EXPECT_EQ(place.file_offset, position);
    position += place.size_bytes;
  }
  EXPECT_EQ(position, plan.shards[0].size_bytes());
  const TensorWork& fc = plan.tensors[index_of(checkpoint, "fc.weight")];
  EXPECT_EQ(fc.parts.at(0).size_bytes, 96U * 288 / 2);
  EXPECT_EQ(fc.parts.at(1).size_bytes, 96U * 288 / 32);
}

TEST(MakePlan, WriteTasksCoverEveryTensorOnce) {
  const Checkpoint checkpoint = tiny();
  const Plan plan = make_plan(checkpoint, uniform_statistics(), Recipe());
  std::vector<std::uint64_t> covered(plan.tensors.size(), 0);
  for (const WriteTask& task : plan.write_tasks) {
    EXPECT_EQ(task.begin, covered[task.tensor]);
    covered[task.tensor] = task.end;
  }
  for (std::size_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
    const TensorWork& work = plan.tensors[tensor];
    EXPECT_EQ(
        covered[tensor],
        work.action == Action::kCopy ? checkpoint.tensors()[tensor].entry.size_bytes() : work.rows);
  }
}

TEST(MakePlan, SearchServesTheQuantizedReadersOnly) {
  const Checkpoint checkpoint = tiny();
  const Plan plan = make_plan(checkpoint, uniform_statistics(), Recipe());
  std::vector<std::string> readers;
  for (const SearchTask& task : plan.search_tasks) {
    if (plan.architecture.fold_groups[task.group].name == "qkv") {
      readers.push_back(checkpoint.tensors()[task.tensor].entry.name);
    }
  }
  EXPECT_THAT(readers,
              ElementsAre("layers.0.self_attn.q_proj.weight",
                          "layers.0.self_attn.k_proj.weight",
                          "layers.0.self_attn.v_proj.weight",
                          "layers.1.self_attn.q_proj.weight",
                          "layers.1.self_attn.k_proj.weight",
                          "layers.1.self_attn.v_proj.weight"));
}

TEST(MakePlan, ALargeReaderIsCutIntoRowRanges) {
  // 2048 rows of the script's sample, spread over q, k, v: 128 + 64 + 64 rows are fewer, so all are
  // taken.
  Recipe recipe;
  recipe.compat = Compat::kSeed;
  recipe.scale_rule = ScaleRule::kFloor;
  const Plan plan = make_plan(tiny(), uniform_statistics(), recipe);
  std::uint64_t rows = 0;
  for (const SearchTask& task : plan.search_tasks) {
    EXPECT_EQ(task.step, 1U);
    rows += plan.architecture.fold_groups[task.group].name == "layers.0.qkv" ? task.end - task.begin
                                                                             : 0;
  }
  EXPECT_EQ(rows, 256U);
}

TEST(MakePlan, WithoutStatisticsOfOptionalInputsTheirGroupStaysUnscaled) {
  Statistics statistics = uniform_statistics();
  statistics.erase("layers.0.self_attn.o_proj");
  EXPECT_THAT(refusal(statistics, Recipe()),
              HasSubstr("layers.0.self_attn.o_proj"));  // one layer has it
  statistics.erase("layers.1.self_attn.o_proj");
  const Plan plan = make_plan(tiny(), statistics, Recipe());
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    if (plan.architecture.fold_groups[group].name.ends_with(".o")) {
      EXPECT_EQ(plan.groups[group].reason, "no statistics were recorded for it");
    }
  }
}

TEST(MakePlan, RefusesStatisticsOfAnotherModel) {
  Statistics statistics;
  statistics["blocks.0.attn"].absmean = {1.0};
  EXPECT_THAT(refusal(statistics, Recipe()),
              HasSubstr("match nothing in the architecture 'dflash2'"));
}

TEST(MakePlan, NamesStatisticsThatItDoesNotUse) {
  Statistics statistics = uniform_statistics();
  statistics["layers.0.surprise"].absmean = {1.0};
  statistics["layers.1.surprise"].absmean = {1.0};
  const Plan plan = make_plan(tiny(), statistics, Recipe());
  EXPECT_THAT(plan.notices,
              testing::Contains(HasSubstr("'dflash2': layers.0.surprise, layers.1.surprise")));
}

TEST(MakePlan, AGroupWithoutQuantizedReadersIsNotSearched) {
  Recipe recipe;
  recipe.keep = {"*.down_proj"};
  const Plan plan = make_plan(tiny(), uniform_statistics(), recipe);
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    if (plan.architecture.fold_groups[group].name.ends_with(".down")) {
      EXPECT_EQ(plan.groups[group].reason, "none of its readers is quantized");
    }
  }
}

// The name of the work that each of some works shares its scale with.
std::map<std::string, std::string> sharing(const Plan& plan) {
  std::map<std::string, std::string> shared;
  for (const TensorWork& work : plan.tensors) {
    shared[work.name] = plan.tensors.at(work.shares_scale_with).name;
  }
  return shared;
}

TEST(MakePlan, FusedTensorsShareAScaleAndACacheHasItsOwn) {
  Recipe recipe = default_recipe(Scheme::kFp8Tensor, Layout::kCompressedTensors);
  recipe.scaling = Scaling::kNone;
  recipe.kv_cache = KvCache::kFp8;
  const auto shared = sharing(make_plan_without_search(tiny(), recipe));
  const std::string attention = "layers.1.self_attn.";
  EXPECT_EQ(shared.at(attention + "q_proj.weight"), attention + "k_proj.weight");
  EXPECT_EQ(shared.at(attention + "v_proj.weight"), attention + "k_proj.weight");
  EXPECT_EQ(shared.at(attention + "o_proj.weight"), attention + "o_proj.weight");
  EXPECT_EQ(shared.at(attention + "k_scale"), attention + "k_scale");
  EXPECT_EQ(shared.at(attention + "v_scale"), attention + "v_scale");
}

TEST(MakePlan, SharedScalesAreFoundAmongWhatAJaxModelTakes) {
  const test::TemporaryFolder folder;
  const std::filesystem::path model = folder.path() / "model.json";
  std::ofstream(model) << R"({"schema": 1, "name": "second-layer",
    "leave_out": ["candidate_selector.*", "fc.*", "hidden_norm.*", "layers.0.*", "*conv*", "*norm*"],
    "weights": [{"from": "layers.1.{path:*}.weight", "to": "{path}", "axes": "out in -> in out"}]})";
  Recipe recipe = default_recipe(Scheme::kFp8Tensor, Layout::kQwix);
  recipe.scaling = Scaling::kNone;
  recipe.jax_model = model;
  const Plan plan = make_plan_without_search(tiny(), recipe);
  ASSERT_EQ(plan.tensors.size(), 7U);
  const auto shared = sharing(plan);
  EXPECT_EQ(shared.at("layers.1.mlp.down_proj.weight"), "layers.1.mlp.down_proj.weight");
  EXPECT_EQ(shared.at("layers.1.mlp.up_proj.weight"), "layers.1.mlp.gate_proj.weight");
  EXPECT_EQ(shared.at("layers.1.self_attn.v_proj.weight"), "layers.1.self_attn.k_proj.weight");
}

TEST(PooledAbsmean, WeighsLayersByTheirTokens) {
  Plan plan = make_plan_without_search(tiny(), Recipe());
  Statistics statistics = uniform_statistics();
  for (auto& [name, input] : statistics) {
    input.has_count = true;
    input.count = name.starts_with("layers.0") ? 1 : 3;
  }
  statistics["layers.1.self_attn.qkv_proj"].absmean.assign(96, 5.0);
  match_statistics(statistics, plan.architecture);
  const std::vector<double> pooled =
      pooled_absmean(plan.architecture, plan.architecture.fold_groups[0], statistics, 1);
  EXPECT_THAT(pooled, testing::SizeIs(96));
  EXPECT_THAT(pooled, testing::Each((1 * 1.0 + 3 * 5.0) / 4));
}

TEST(PooledAbsmean, AveragesTheColumnsThatShareAChannel) {
  Plan plan = make_plan_without_search(tiny(), Recipe());
  Statistics statistics = uniform_statistics();
  std::vector<double>& absmean = statistics["layers.0.self_attn.o_proj"].absmean;
  // 2 KV heads x 2 query heads x 32: channel 33 is element 1 of KV head 1, read by columns 65
  // and 97.
  absmean[65] = 2.0;
  absmean[97] = 6.0;
  match_statistics(statistics, plan.architecture);
  for (const FoldGroup& group : plan.architecture.fold_groups) {
    if (group.name == "layers.0.o") {
      const std::vector<double> pooled = pooled_absmean(plan.architecture, group, statistics, 1);
      ASSERT_EQ(pooled.size(), 64U);
      EXPECT_EQ(pooled[33], 4.0);
      EXPECT_EQ(pooled[32], 1.0);
    }
  }
}

}  // namespace
}  // namespace quantmill
