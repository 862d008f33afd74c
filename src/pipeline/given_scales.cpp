#include "pipeline/given_scales.h"

#include <cmath>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "pipeline/search.h"

namespace quantmill {
namespace {

float nearest_power_of_two(float s) {
  return std::ldexp(1.0F, static_cast<int>(std::nearbyint(std::log2(double{s}))));
}

void check_scales(const FoldGroup& group, const GroupScales& given) {
  if (given.s.size() != group.num_channels) {
    throw Error(ErrorCode::kInput,
                fmt::format("fold group '{}' has {} scales, but {} channels; they are of another "
                            "model",
                            group.name,
                            given.s.size(),
                            group.num_channels));
  }
  for (std::size_t channel = 0; channel < given.s.size(); ++channel) {
    if (!(std::isfinite(given.s[channel]) && given.s[channel] > 0)) {
      throw Error(ErrorCode::kInput,
                  fmt::format("fold group '{}': the scale of channel {} is {}; a number above 0 is "
                              "wanted",
                              group.name,
                              channel,
                              given.s[channel]));
    }
  }
}

ScaleTable take_scales(ScaleTable given, const Plan& plan) {
  ScaleTable table = neutral_scales(plan);
  for (std::size_t index = 0; index < plan.groups.size(); ++index) {
    const FoldGroup& group = plan.architecture.fold_groups[index];
    const auto found = given.find(group.name);
    if (!plan.groups[index].searched) {
      given.erase(group.name);
      continue;
    }
    if (found == given.end()) {
      throw Error(ErrorCode::kInput,
                  fmt::format("it has nothing for fold group '{}' of the model", group.name));
    }
    check_scales(group, found->second);
    if (plan.recipe.fold_scales == FoldScales::kPow2) {
      for (float& s : found->second.s) {
        s = nearest_power_of_two(s);
      }
    }
    table[group.name] = std::move(found->second);
    given.erase(found);
  }
  if (!given.empty()) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("it has fold group '{}', which the model does not have", given.begin()->first));
  }
  return table;
}

}  // namespace

ScaleTable read_given_scales(const std::filesystem::path& file, const Plan& plan) {
  return with_context(fmt::format("--scales {}", file.string()),
                      [&] { return take_scales(read_scales(file), plan); });
}

}  // namespace quantmill
