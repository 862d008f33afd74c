#include "pipeline/activation_errors.h"

#include <algorithm>
#include <optional>

#include "pipeline/column_magnitudes.h"
#include "quant/activation_noise.h"

namespace quantmill {
namespace {

bool rounds_activations(const Plan& plan, const Activation& activation) {
  return std::ranges::all_of(activation.readers, [&](std::size_t reader) {
    const std::optional<Scheme> scheme = plan.choices[reader].scheme;
    return !scheme || searched_scheme(*scheme) == Scheme::kMxfp4;
  });
}

}  // namespace

ActivationErrors activation_errors(const Context& context,
                                   const Plan& plan,
                                   const Statistics& statistics,
                                   bool counted,
                                   std::size_t activation,
                                   std::span<const double> column_squares,
                                   const std::vector<std::vector<float>>& candidates) {
  const Activation& subject = plan.architecture.activations[activation];
  const ColumnMap& columns = subject.columns;
  ActivationErrors errors;
  if (column_squares.empty() || !rounds_activations(plan, subject)) {
    return errors;
  }
  const InputStatistics& input = statistics.at(subject.statistics);
  const auto part = [&](const std::vector<double>& values) {
    return values.empty() ? std::span<const double>()
                          : std::span(values).subspan(columns.start, columns.num_columns());
  };
  ActivationNoise noise(context, part(input.absmean), part(input.sqmean));
  errors.tokens = counted ? static_cast<double>(input.count) : 1;
  for (const std::vector<float>& candidate : candidates) {
    errors.by_candidate.push_back(
        noise.block_errors(spread_channels(columns, candidate), column_squares));
  }
  return errors;
}

}  // namespace quantmill
