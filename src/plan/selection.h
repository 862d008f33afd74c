#pragma once

// Which tensors are quantized, and to what.

#include <optional>
#include <string>
#include <vector>

#include "plan/architecture.h"
#include "plan/recipe.h"

namespace quantmill {

// What becomes of one tensor of an architecture.
struct SchemeChoice {
  std::optional<Scheme> scheme;  // nothing: it is not quantized
  std::string pattern;           // of the recipe, that said so; empty: none did
  bool by_target = false;        // Recipe::chosen said so

  [[nodiscard]] bool is_quantized() const { return scheme.has_value(); }
};

// Whether tensors of this part are quantized; "" is what every model has.
bool is_included(const std::string& part, const Recipe& recipe);

// Tensors, as indices in ascending order, that must have one scheme: slices of one stored tensor,
// what servers fuse, and where servers number layers otherwise than the checkpoint
// (server_layer_offset), so that configs can't name one, the same tensor of all layers. Every
// quantizable tensor is in exactly one set; sets in the order of their first tensors.
std::vector<std::vector<std::size_t>> scheme_groups(const ResolvedArchitecture& architecture);

// One for each tensor of the architecture. Where the recipe folds only, "quantized" is what would
// be. Errors, kUsage: a pattern that matches nothing, a chosen scheme of a
// tensor that the model lacks, a part of --include that the model lacks,
// tensors that are one module in servers or one stored tensor and would differ (names the pair),
// nothing left to quantize.
std::vector<SchemeChoice> choose_schemes(const ResolvedArchitecture& architecture,
                                         const Recipe& recipe);

}  // namespace quantmill
