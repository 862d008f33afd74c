#pragma once

// Parts of a model that are copied as they are, and the layers among them whose linears are
// quantized on request. Private to the plan module.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/pattern.h"

namespace quantmill {

// What layers of a part are called, without placeholders and prefixes: "layers.61", "mtp.layers.*".
struct PartLayers {
  std::string part;
  std::vector<std::string> patterns;
};

// Where in such a layer a tensor stands: "model.mtp.layers.0.mlp.up_proj.weight".
struct PlaceInPart {
  std::string part;        // "mtp"
  std::string layer;       // "mtp.layers.0"
  std::uint64_t number{};  // 0
  std::string rest;        // ".mlp.up_proj.weight"
};

class CopiedParts {
 public:
  // `prefixes` without the empty one.
  CopiedParts(std::vector<std::string> copied,
              std::vector<PartLayers> layers,
              std::vector<std::string> prefixes);

  // The pattern that takes the tensor, if one does.
  [[nodiscard]] std::optional<std::string> pattern_of(const std::string& name) const;

  [[nodiscard]] std::optional<PlaceInPart> place_of(const std::string& name) const;

 private:
  std::vector<std::string> copied_;
  std::vector<PartLayers> layers_;
  std::vector<std::string> prefixes_;  // the longest first, the empty one last
};

}  // namespace quantmill
