#include "pipeline/input_ranges.h"

#include <algorithm>
#include <map>
#include <string>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {
namespace {

double largest_folded(const Activation& activation,
                      const ActivationFold& fold,
                      const std::vector<double>& absmax) {
  if (absmax.size() != activation.reader_columns) {
    throw Error(ErrorCode::kInput,
                fmt::format("the recorded maxima of '{}' have {} channels, but the weights that "
                            "read it have {} columns; they are of another model",
                            activation.name,
                            absmax.size(),
                            activation.reader_columns));
  }
  double largest = 0;
  const ColumnMap& columns = activation.columns;
  for (std::size_t column = columns.start; column < columns.end(); ++column) {
    const double s = fold.s.empty() ? 1.0 : double{fold.s[columns.channel_of(column)]};
    largest = std::max(largest, absmax[column] / s);
  }
  return largest;
}

// Of keys or values, as they are cached once scales are folded.
double largest_cached(const Plan& plan,
                      const std::vector<ActivationFold>& folds,
                      const KvScale& scale,
                      const InputMaxima& maxima) {
  const auto found = maxima.find(scale.maxima);
  const std::size_t recorded = found == maxima.end() ? 0 : found->second.size();
  const std::vector<float> none;
  const std::vector<float>& s = scale.activation ? folds[*scale.activation].s : none;
  if (recorded == 0 || (!s.empty() && s.size() != recorded)) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("the recorded maxima of '{}' have {} channels, {} are wanted; they are "
                    "of another model",
                    scale.maxima,
                    recorded,
                    s.empty()
                        ? plan.architecture.tensors[plan.tensors[scale.work].tensor].in_features()
                        : s.size()));
  }
  double largest = 0;
  for (std::size_t channel = 0; channel < recorded; ++channel) {
    largest = std::max(largest, found->second[channel] / (s.empty() ? 1.0 : double{s[channel]}));
  }
  return largest;
}

}  // namespace

std::vector<float> largest_inputs(const Plan& plan,
                                  const std::vector<ActivationFold>& folds,
                                  const InputMaxima& maxima) {
  const ResolvedArchitecture& architecture = plan.architecture;
  std::vector<double> of_tensor(architecture.tensors.size(), 0.0);
  std::map<std::string, double> of_family;
  for (std::size_t index = 0; index < architecture.activations.size(); ++index) {
    const Activation& activation = architecture.activations[index];
    const auto found = maxima.find(activation.name);
    if (found == maxima.end()) {
      continue;
    }
    const double largest = largest_folded(activation, folds[index], found->second);
    for (const std::size_t reader : activation.readers) {
      of_tensor[reader] = std::max(of_tensor[reader], largest);
      double& family = of_family[peer_family(architecture.tensors[reader].name)];
      family = std::max(family, largest);
    }
  }
  std::vector<float> result(plan.tensors.size(), 0.0F);
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    const TensorWork& work = plan.tensors[index];
    if (work.is_quantized() && !maxima.empty()) {
      const double own = of_tensor[work.tensor];
      result[index] = static_cast<float>(
          own > 0 ? own : of_family[peer_family(architecture.tensors[work.tensor].name)]);
    }
  }
  for (const KvScale& scale : plan.kv_scales) {
    result[scale.work] = static_cast<float>(largest_cached(plan, folds, scale, maxima));
  }
  return result;
}

}  // namespace quantmill
