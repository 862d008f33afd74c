#include "pipeline/summary.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/byte_size.h"
#include "plan/target.h"

namespace quantmill {
namespace {

constexpr std::size_t kWorstTensors = 5;

// The searched groups' error with the chosen scales, against alpha and beta 0, which is no scaling.
// Empty if that was not tried.
std::string describe_gain(const ScaleTable& scales) {
  double chosen = 0;
  double unscaled = 0;
  std::size_t groups = 0;
  for (const auto& [name, group] : scales) {
    std::size_t neutral = 0;
    while (neutral < group.alphas.size() &&
           (group.alphas[neutral] != 0 || group.betas[neutral] != 0)) {
      ++neutral;
    }
    if (!group.reason.empty() || neutral == group.alphas.size()) {
      continue;
    }
    ++groups;
    chosen += *std::ranges::min_element(group.errors);
    unscaled += group.errors[neutral];
  }
  if (groups == 0 || unscaled == 0) {
    return "";
  }
  return fmt::format(
      "activation-weighted error of {} scaled fold groups: {:.1f} % of what it is unscaled\n",
      groups,
      100 * chosen / unscaled);
}

// "12 tensors quantized to mxfp4, 4 to fp8-channel", the most first.
std::string describe_schemes(const std::vector<TensorError>& tensors) {
  std::map<std::string, std::size_t> by_scheme;
  for (const TensorError& tensor : tensors) {
    ++by_scheme[tensor.stored_as];
  }
  if (by_scheme.empty()) {
    return "nothing quantized";
  }
  std::vector<std::pair<std::string, std::size_t>> schemes(by_scheme.begin(), by_scheme.end());
  std::ranges::stable_sort(schemes, std::ranges::greater(), [](const auto& s) { return s.second; });
  std::string text = fmt::format("{} tensors quantized to {}", schemes[0].second, schemes[0].first);
  for (std::size_t i = 1; i < schemes.size(); ++i) {
    text += fmt::format(", {} to {}", schemes[i].second, schemes[i].first);
  }
  return text;
}

}  // namespace

std::string describe_result(const std::filesystem::path& source,
                            const std::filesystem::path& out,
                            const Plan& plan,
                            const ScaleTable& scales,
                            const std::vector<TensorError>& tensors,
                            double seconds) {
  const double share = 100.0 * static_cast<double>(plan.output_bytes) /
                       static_cast<double>(std::max<std::uint64_t>(1, plan.source_bytes));
  std::string text = fmt::format("{} -> {}\n{} -> {} ({:.1f} %), {}, {:.1f} s, {} of source\n",
                                 source.string(),
                                 out.string(),
                                 format_size(plan.source_bytes),
                                 format_size(plan.output_bytes),
                                 share,
                                 describe_schemes(tensors),
                                 seconds,
                                 format_rate(plan.source_bytes, seconds));
  text += describe_target(plan);
  text += describe_gain(scales);
  std::vector<TensorError> worst = tensors;
  std::ranges::stable_sort(worst, std::ranges::greater(), &TensorError::relative_error);
  worst.resize(std::min(kWorstTensors, worst.size()));
  if (!worst.empty()) {
    text += "worst relative weight error:\n";
  }
  for (const TensorError& tensor : worst) {
    text += fmt::format("  {:<44} {:.4f}\n", tensor.name, tensor.relative_error);
  }
  return text;
}

std::string format_rate(std::uint64_t bytes, double seconds) {
  return fmt::format("{:.2f} GB/s", static_cast<double>(bytes) / 1e9 / std::max(seconds, 1e-9));
}

}  // namespace quantmill
