#include "plan/kept.h"

#include <fmt/format.h>

#include "plan/selection.h"

namespace quantmill {
namespace {

std::string reason(const Recipe& recipe, const ModelTensor& tensor, const SchemeChoice& choice) {
  if (choice.scheme) {
    return fmt::format("scheme {}", scheme_name(*choice.scheme));
  }
  if (choice.by_target) {
    return "chosen for the target";
  }
  if (!choice.pattern.empty()) {
    return fmt::format("pattern {}", choice.pattern);
  }
  if (tensor.quantizable && !is_included(tensor.part.str(), recipe)) {
    return fmt::format("part {0}, which --include {0} quantizes", tensor.part.str());
  }
  if (!tensor.copied_by.empty()) {
    return fmt::format("copied as {}", tensor.copied_by.str());
  }
  if (tensor.role == TensorRole::kNorm) {
    return "a norm";
  }
  if (tensor.quantizable) {  // choose_schemes has no other reason left
    return fmt::format("not of a form that layout {} holds quantized", layout_name(recipe.layout));
  }
  return tensor.role == TensorRole::kLinear ? "a matrix that servers read unquantized"
                                            : "not a linear's weight";
}

}  // namespace

std::vector<KeptTensor> kept_tensors(const Plan& plan) {
  std::vector<KeptTensor> kept;
  for (const TensorWork& work : plan.tensors) {
    if (work.is_quantized() || work.action == Action::kKvScale) {
      continue;
    }
    kept.push_back(
        {work.name,
         std::string(work.stored_name()),
         work.output_bytes(),
         reason(plan.recipe, plan.architecture.tensors[work.tensor], plan.choices[work.tensor])});
  }
  return kept;
}

}  // namespace quantmill
