// Any bytes as an architecture file, against a small checkpoint: it resolves to something
// consistent or is refused.

#include <string>
#include <utility>
#include <vector>

#include "fuzz.h"
#include "plan/architecture.h"

namespace quantmill {
namespace {

constexpr const char* kConfig = R"({"architectures": ["DFlash2DraftModel"], "num_hidden_layers": 1,
  "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2,
  "vocab_size": 5, "num_target_layers": 3, "dflash_config": {"conv_kernel_size": 2, "conv_group_size": 4,
  "selector_rank": 3, "target_layer_ids": [1, 2]}})";

std::vector<SourceTensor> small_checkpoint() {
  const std::vector<std::pair<const char*, std::vector<std::uint64_t>>> shapes = {
      {"fc.weight", {8, 16}},
      {"hidden_norm.weight", {8}},
      {"norm.weight", {8}},
      {"layers.0.input_layernorm.weight", {8}},
      {"layers.0.post_attention_layernorm.weight", {8}},
      {"layers.0.self_attn.q_proj.weight", {8, 8}},
      {"layers.0.self_attn.k_proj.weight", {4, 8}},
      {"layers.0.self_attn.v_proj.weight", {4, 8}},
      {"layers.0.self_attn.o_proj.weight", {8, 8}},
      {"layers.0.self_attn.q_norm.weight", {2}},
      {"layers.0.self_attn.k_norm.weight", {2}},
      {"layers.0.mlp.gate_proj.weight", {12, 8}},
      {"layers.0.mlp.up_proj.weight", {12, 8}},
      {"layers.0.mlp.down_proj.weight", {8, 12}},
      {"layers.0.attention_conv.base_kernel", {2, 2, 8}},
      {"layers.0.attention_conv.kernel_projection.weight", {8, 8}},
      {"layers.0.mlp_conv.base_kernel", {2, 2, 8}},
      {"layers.0.mlp_conv.kernel_projection.weight", {8, 8}},
      {"candidate_selector.hidden_projection.weight", {3, 8}},
      {"candidate_selector.predecessor_codebook", {5, 3}},
      {"candidate_selector.successor_codebook", {5, 3}}};
  std::vector<SourceTensor> tensors;
  for (const auto& [name, shape] : shapes) {
    SourceTensor& tensor = tensors.emplace_back();
    tensor.entry.name = name;
    tensor.entry.shape = shape;
    tensor.entry.dtype = DType::kBf16;
  }
  return tensors;
}

void check(const ResolvedArchitecture& resolved, std::size_t num_tensors) {
  std::size_t num_whole = 0;
  for (const ModelTensor& tensor : resolved.tensors) {
    num_whole += static_cast<std::size_t>(tensor.slice.value_or(0) == 0);
  }
  fuzz::require(num_whole == num_tensors, "every tensor is described");
  std::vector<int> groups_of(resolved.activations.size(), 0);
  for (const FoldGroup& group : resolved.fold_groups) {
    for (const std::size_t index : group.activations) {
      const Activation& activation = resolved.activations.at(index);
      ++groups_of[index];
      fuzz::require(activation.columns.num_channels() == group.num_channels, "a group has one s");
      fuzz::require(activation.producer.has_value() || !group.no_fold_reason.empty(),
                    "what is scaled has a producer");
      fuzz::require(activation.columns.end() <= activation.reader_columns, "columns are there");
      for (std::size_t column = activation.columns.start; column < activation.columns.end();
           ++column) {
        fuzz::require(activation.columns.channel_of(column) < group.num_channels,
                      "a column has a channel");
      }
    }
  }
  for (const int count : groups_of) {
    fuzz::require(count == 1, "an activation is in one group");
  }
}

}  // namespace
}  // namespace quantmill

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  static const std::vector<SourceTensor> tensors = small_checkpoint();
  const std::string json(fuzz::as_text(data, size));
  fuzz::only_input_errors(
      [&] { check(resolve_architecture(json, kConfig, tensors, true), tensors.size()); });
  fuzz::only_input_errors([&] {
    const PartitionOf rule = partition_rule(json);
    rule("layers.0.mlp.down_proj");
    rule(json);
  });
  return 0;
}
