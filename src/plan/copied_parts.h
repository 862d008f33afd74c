#pragma once

// Parts of a model that are copied as they are, and the linears among them that are quantized on
// request. Private to the plan module.

#include <optional>
#include <string>
#include <vector>

#include "plan/architecture.h"

namespace quantmill {

// Patterns without placeholders and prefixes.
struct PartLinears {
  std::string part;
  std::vector<std::string> patterns;
};

class CopiedParts {
 public:
  // `prefixes` without the empty one.
  CopiedParts(std::vector<std::string> copied,
              std::vector<PartLinears> linears,
              const std::vector<std::string>& prefixes);

  // Whether a pattern takes the tensor, whose name and shape are set. If so, sets copied_by; of a
  // matrix that is a linear of a part also role, quantizable, part and fused_group. That is the
  // module around it ("layers.61.mlp.experts", "mtp.layers.0.self_attn"), whatever of it servers
  // fuse.
  bool describe(ModelTensor& tensor) const;

 private:
  [[nodiscard]] std::optional<std::string> find(const std::vector<std::string>& patterns,
                                                const std::string& name) const;
  [[nodiscard]] std::string module_around(const std::string& module) const;

  std::vector<std::string> copied_;
  std::vector<PartLinears> linears_;
  std::vector<std::string> prefixes_;  // the longest first, the empty one last
};

}  // namespace quantmill
