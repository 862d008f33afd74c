// Any bytes as a description of a JAX model's parameters, against a small checkpoint: the
// parameters hold every weight, or the description is refused.

#include <string>
#include <vector>

#include "fuzz.h"
#include "plan/qwix/jax_model.h"
#include "plan/qwix/jax_parameters.h"
#include "tensor_lines.h"

namespace {

constexpr const char* kConfig =
    R"({"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 2, "intermediate_size": 12, "num_experts": 2, "vocab_size": 5})";

constexpr const char* kTensors = R"(model.embed_tokens.weight BF16 5 8
model.norm.weight BF16 8
model.layers.0.self_attn.q_proj.weight BF16 8 8
model.layers.1.self_attn.q_proj.weight BF16 8 8
model.layers.0.self_attn.k_proj.weight BF16 4 8
model.layers.1.self_attn.k_proj.weight BF16 4 8
model.layers.0.mlp.experts.0.down_proj.weight BF16 8 12
model.layers.0.mlp.experts.1.down_proj.weight BF16 8 12
model.layers.1.mlp.down_proj.weight BF16 8 12
model.layers.1.mlp.experts.gate_up_proj BF16 2 8 24
)";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  static const std::vector<SourceWeight> weights =
      find_weights(fuzz::tensors_of(kTensors), kConfig);
  const std::string text(fuzz::as_text(data, size));
  fuzz::only_input_errors([&] {
    const JaxModel model = parse_jax_model(text);
    const JaxParameters found =
        find_jax_parameters(model, kConfig, weights, std::vector<bool>(weights.size(), true));
    std::vector<int> places(weights.size(), 0);
    for (const std::size_t weight : found.left_out) {
      ++places.at(weight);
    }
    for (const JaxParameter& parameter : found.parameters) {
      fuzz::require(!parameter.name.empty(), "a parameter has a name");
    }
    for (const int count : places) {
      fuzz::require(count <= 1, "a weight is left out once");
    }
  });
  return 0;
}
