// What no entry of an architecture describes by name: copied parts, and the layers among them that
// are like the model's own. The rest of TensorMatcher is tensor_matcher.cpp.

#include "plan/tensor_matcher.h"

#include <algorithm>

namespace quantmill {

void TensorMatcher::describe_unmatched(const CopiedParts& copied, std::size_t stored) {
  const TensorEntry& entry = stored_[stored].entry;
  const std::optional<std::string> pattern = copied.pattern_of(entry.name);
  (pattern ? copied_ : unknown_).push_back(entry.name);
  const std::optional<PlaceInPart> place = pattern ? copied.place_of(entry.name) : std::nullopt;
  const Match match = place ? match_in_part(*place, entry) : Match();
  ModelTensor tensor = describe(match, stored);
  tensor.copied_by = pattern.value_or("");
  add(match, stored, std::move(tensor));
}

TensorMatcher::Match TensorMatcher::match_in_part(const PlaceInPart& place,
                                                  const TensorEntry& entry) {
  if (!by_rest_) {
    by_rest_.emplace();
    for (const TensorSpec& spec : file_.tensors) {
      const std::size_t layer = spec.name.find("{layer}");
      if (layer == std::string::npos) {
        continue;
      }
      const std::string rest = spec.name.substr(layer + std::string("{layer}").size());
      for_each_binding(placeholders(rest), {}, [&](const Binding& binding) {
        by_rest_->try_emplace(substitute(rest, binding), Match{&spec, binding, "", ""});
      });
    }
  }
  const auto found = by_rest_->find(place.rest);
  if (found == by_rest_->end()) {
    return {};
  }
  Match match = found->second;
  const std::optional<std::string> lead = lead_of(place.layer, match.spec->name);
  match.binding.emplace_back("layer", place.number);
  match.lead = lead.value_or("");
  match.part = place.part;
  if (!lead || !has_shape(match, entry)) {
    return {};
  }
  if (std::ranges::find(part_layers_, place.layer, &PlaceInPart::layer) == part_layers_.end()) {
    part_layers_.push_back(place);
  }
  return match;
}

bool TensorMatcher::has_shape(const Match& match, const TensorEntry& entry) const {
  const TensorSpec& spec = *match.spec;
  const std::size_t wanted_dimensions = spec.slices.empty() ? 2 : 3;
  if (spec.role == TensorRole::kLinear &&
      (entry.shape.size() != wanted_dimensions || entry.num_elements() == 0)) {
    return false;
  }
  if (!spec.slices.empty() &&
      (entry.shape.empty() || entry.shape[0] != indices_.at(spec.slices).count)) {
    return false;
  }
  return !spec.shape || wanted_shape(match, entry) == entry.shape;
}

std::vector<std::string> TensorMatcher::filled(const std::vector<std::string>& patterns) {
  std::vector<std::string> names;
  for (const std::string& pattern : patterns) {
    for_each_binding(placeholders(pattern), {}, [&](const Binding& binding) {
      names.push_back(substitute(pattern, binding));
    });
  }
  return names;
}

CopiedParts TensorMatcher::copied_parts() {
  std::vector<PartLayers> layers;
  for (const PartSpec& part : file_.parts) {
    layers.push_back({part.name, filled(part.layers)});
  }
  return {filled(file_.copied), std::move(layers), file_.prefixes};
}

}  // namespace quantmill
