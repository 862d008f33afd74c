#pragma once

// What a checkpoint in layout qwix holds.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace quantmill {

// One stored tensor of a parameter.
struct QwixTensor {
  std::string name;  // "layers.0.mlp.down_proj.kernel.array.scale"
  DType dtype = DType::kBf16;
  std::vector<std::uint64_t> shape;
};

// A parameter of the JAX model: one tensor, or codes with scales and perhaps zero points.
struct QwixParameter {
  std::string name;                  // "layers.0.mlp.down_proj.kernel"
  std::vector<std::string> sources;  // weights of the source
  std::vector<std::string> axes;     // names of its dimensions: "expert", "in", "out"
  QwixTensor values;
  std::optional<QwixTensor> scales;
  std::optional<QwixTensor> zero_points;
  std::string_view logical_type;  // as JAX spells it: "float4_e2m1fn", stored as F8_E4M3
  bool opaque = false;            // read by a kernel that Qwix does not see into
  std::uint64_t block_in = 0;     // inputs that share a scale; 0: all
  std::uint64_t block_out = 1;    // outputs that do

  [[nodiscard]] bool is_quantized() const { return scales.has_value(); }
};

// A file beside the shards that follows from the plan.
struct TextFile {
  std::string name;
  std::string text;
};

}  // namespace quantmill
