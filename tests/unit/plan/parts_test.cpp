// Layers of parts ("mtp.layers.0"), which are described by what the architecture says of the
// model's own.

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "plan/architecture.h"
#include "tests/support/expect_error.h"

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Tensors = std::vector<std::pair<std::string, std::vector<std::uint64_t>>>;

std::string file(const std::string& parts) {
  return R"({"schema": 1, "name": "toy", "prefixes": ["model."],
    "parameters": {"layers": "layers", "size": "size", "experts": "experts", "further": "further"},
    "indices": {"layer": "layers", "expert": "experts", "more": {"start": "layers", "count": "further"}},
    "tensors": [
      {"name": "l.{layer}.n", "role": "norm", "shape": ["size"]},
      {"name": "l.{layer}.a", "role": "linear", "shape": ["6", "size"], "quantize": true, "fused": "l.{layer}.ab"},
      {"name": "l.{layer}.b", "role": "linear", "shape": ["6", "size"], "quantize": true, "fused": "l.{layer}.ab"},
      {"name": "l.{layer}.e", "role": "linear", "optional": true, "quantize": true, "slices": "expert",
       "written_as": [{"name": "l.{layer}.e.{expert}.weight", "rows": {"size": "size"}}]},
      {"name": "all", "role": "norm", "optional": true}],
    "activations": [
      {"name": "l.{layer}.in", "if": "layer == 0", "producer": {"norm": "l.{layer}.n"}, "readers": ["l.{layer}.a", "l.{layer}.b"]},
      {"name": "shared", "producer": {"norm": "all"}, "readers": ["l.{layer}.e[{expert}]"]}],
    "copied": ["x.*", "l.{more}.*"], "parts": )" +
         parts + "}";
}

constexpr const char* kParts = R"([{"name": "ahead", "layers": ["l.{more}", "x.l.*"]}])";

ResolvedArchitecture resolve(Tensors more, const std::string& parts = kParts) {
  Tensors all = {{"model.l.0.n", {4}}, {"model.l.0.a", {6, 4}}, {"model.l.0.b", {6, 4}}};
  all.insert(all.end(), more.begin(), more.end());
  std::vector<SourceTensor> stored;
  for (const auto& [name, shape] : all) {
    SourceTensor& tensor = stored.emplace_back();
    tensor.entry.name = name;
    tensor.entry.shape = shape;
    tensor.entry.dtype = DType::kBf16;
  }
  return resolve_architecture(
      file(parts), R"({"layers": 1, "size": 4, "experts": 2, "further": 1})", stored, false);
}

TEST(Parts, ALayerIsLikeTheModelsOwnUnderItsName) {
  for (const std::string layer : {"l.1", "x.l.0", "model.x.l.7"}) {
    const ResolvedArchitecture found = resolve(
        {{layer + ".n", {4}}, {layer + ".a", {6, 4}}, {layer + ".b", {6, 4}}, {layer + ".z", {9}}});
    const std::string own = layer.starts_with("model.") ? layer.substr(6) : layer;
    EXPECT_EQ(found.tensors[4].part, "ahead");
    EXPECT_TRUE(found.tensors[4].quantizable);
    EXPECT_EQ(found.tensors[4].fused_group, own + ".ab");
    EXPECT_EQ(found.tensors[3].role, TensorRole::kNorm);
    EXPECT_EQ(found.tensors[6].part, "");  // no tensor of the model's layers is called so
    EXPECT_NE(found.tensors[6].copied_by, "");
    ASSERT_EQ(found.activations.size(), 2U);  // whatever its condition says of the model's layers
    EXPECT_EQ(found.activations[1].name, own + ".in");
    EXPECT_EQ(found.activations[1].part, "ahead");
    EXPECT_THAT(found.activations[1].readers, ElementsAre(4U, 5U));
    EXPECT_THAT(found.activations[1].recorded_as, ElementsAre(own + ".a", own + ".b"));
    EXPECT_EQ(found.fold_groups[1].part, "ahead");
  }
}

TEST(Parts, SlicesAreWrittenUnderItsName) {
  const ResolvedArchitecture found = resolve({{"model.x.l.0.e", {2, 4, 4}}});
  ASSERT_EQ(found.tensors.size(), 5U);
  EXPECT_EQ(found.tensors[4].name, "model.x.l.0.e[1]");
  EXPECT_EQ(found.tensors[4].written_as[0].name, "model.x.l.0.e.1.weight");
  EXPECT_EQ(found.tensors[4].part, "ahead");
  EXPECT_EQ(found.tensors[4].copied_by, "x.*");
}

TEST(Parts, WhatHasAnotherShapeIsOnlyCopied) {
  const ResolvedArchitecture found =
      resolve({{"x.l.0.n", {5}}, {"x.l.0.a", {6, 5}}, {"x.l.0.e", {3, 4, 4}}});
  for (std::size_t i = 3; i < found.tensors.size(); ++i) {
    EXPECT_EQ(found.tensors[i].part, "");
    EXPECT_EQ(found.tensors[i].role, TensorRole::kOther);
  }
  EXPECT_EQ(found.activations.size(), 1U);
}

TEST(Parts, OtherLayersOfTheSameFormAreNoPart) {
  const ResolvedArchitecture found = resolve(
      {{"x.l.first.a", {6, 4}}, {"x.m.0.a", {6, 4}}, {"x.l.99999999999999999999.a", {6, 4}}});
  for (std::size_t i = 3; i < found.tensors.size(); ++i) {
    EXPECT_EQ(found.tensors[i].part, "");
  }
}

TEST(Parts, ALayersNameEndsInANumber) {
  for (const char* layer : {"x.l", "x.l.*.y", "x.l.{more}y", "*.l.{layer"}) {
    EXPECT_THAT(test::error_of([&] {
                  resolve({}, std::string(R"([{"name": "ahead", "layers": [")") + layer + "\"]}]");
                }).message(),
                testing::AnyOf(HasSubstr("must end in a number of its own"), HasSubstr("brace")));
  }
}

TEST(Parts, RecordsOfTheirRowsAreJoinedLikeTheModelsOwn) {
  const PartitionOf partition = partition_rule(load_architecture("qwen3-next"));
  EXPECT_EQ(partition("mtp.layers.0.mlp.experts.3.down_proj"), Partition::kRow);
  EXPECT_EQ(partition("model.layers.48.mlp.experts.3.down_proj"), Partition::kRow);
  EXPECT_EQ(partition("mtp.layers.0.mlp.experts.3.up_proj"), Partition::kReplicated);
  EXPECT_EQ(partition("other.layers.0.mlp.experts.3.down_proj"), Partition::kReplicated);
}

}  // namespace
}  // namespace quantmill
