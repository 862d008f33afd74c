#include "plan/qwix/parameter_sources.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"

namespace quantmill {

namespace {

using Places = std::map<std::string, std::uint64_t>;                  // axis -> index
using Taken = std::map<std::pair<std::size_t, Places>, std::size_t>;  // "from", place -> weight

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

// Sizes of axes; of the joined one for each "from".
struct AxisSizes {
  Places common;
  std::vector<Places> joined;
};

AxisSizes collect_sizes(const JaxRule& rule,
                        const std::vector<SourceWeight>& weights,
                        const JaxParameter& parameter) {
  AxisSizes sizes{{}, std::vector<Places>(rule.from.size())};
  for (const ParameterSource& source : parameter.sources) {
    for (const auto& [axis, index] : source.at) {
      sizes.common[axis] = std::max(sizes.common[axis], index + 1);
    }
  }
  for (const ParameterSource& source : parameter.sources) {
    for (const std::vector<SizedAxis>& dimension : source.dimensions) {
      for (const SizedAxis& axis : dimension) {
        Places& known = axis.name == rule.join ? sizes.joined[source.position] : sizes.common;
        const std::uint64_t size = known.try_emplace(axis.name, axis.size).first->second;
        if (size != axis.size) {
          fail(fmt::format("{} has {} elements along {} where another weight has {}",
                           weights[source.weight].entry.name,
                           axis.size,
                           axis.name,
                           size));
        }
      }
    }
  }
  return sizes;
}

// The first place, in order, that a weight of the group should take and does not.
std::string first_missing(const JaxRule& rule,
                          const Taken& taken,
                          const Places& stacks,
                          bool stacks_parts) {
  Places at;
  for (const auto& [axis, size] : stacks) {
    at[axis] = 0;
  }
  while (true) {
    for (std::size_t position = 0; position < rule.from.size(); ++position) {
      if (stacks_parts) {
        at[kPartAxis] = position;
      }
      if (!taken.contains({position, at})) {
        std::string text = rule.from[position].text();
        for (const auto& [axis, index] : at) {
          text += axis == kPartAxis ? "" : fmt::format(", {} {}", axis, index);
        }
        return text;
      }
    }
    // The next place: the last axis is the fastest.
    auto axis = at.rbegin();
    for (; axis != at.rend(); ++axis) {
      if (axis->first != kPartAxis && ++axis->second < stacks.at(axis->first)) {
        break;
      }
      axis->second = 0;
    }
    check_invariant(axis != at.rend(), "every place is taken");
  }
}

// Every place along the stacked axes is taken once by each of the rule's weights.
void check_complete(const JaxRule& rule,
                    const std::vector<SourceWeight>& weights,
                    const JaxParameter& parameter,
                    const Places& sizes,
                    bool stacks_parts) {
  Taken taken;
  Places stacks;
  for (const ParameterSource& source : parameter.sources) {
    const auto [found, is_new] = taken.try_emplace({source.position, source.at}, source.weight);
    if (!is_new) {
      fail(fmt::format("{} and {} take the same place in it",
                       weights[found->second].entry.name,
                       weights[source.weight].entry.name));
    }
    for (const auto& [axis, index] : source.at) {
      stacks[axis] = sizes.at(axis);
    }
  }
  std::uint64_t wanted = rule.from.size();
  for (const auto& [axis, size] : stacks) {
    wanted = checked_multiply(wanted, axis == kPartAxis ? 1 : size).value_or(0);
  }
  if (wanted != taken.size()) {
    fail(
        fmt::format("{} of the {} weights that it is made of are there, among them {}; the first "
                    "that is missing is {}",
                    taken.size(),
                    wanted,
                    weights[parameter.sources.front().weight].entry.name,
                    first_missing(rule, taken, stacks, stacks_parts)));
  }
}

}  // namespace

AxisPattern axes_of(const JaxRule& rule, std::size_t dimensions) {
  if (rule.axes) {
    return *rule.axes;
  }
  AxisPattern axes;
  for (std::size_t i = 0; i < dimensions; ++i) {
    axes.from.push_back({fmt::format("axis{}", i)});
  }
  axes.to = axes.from;
  return axes;
}

void complete_parameter(const JaxRule& rule,
                        const std::vector<SourceWeight>& weights,
                        JaxParameter& parameter) {
  const AxisPattern axes = axes_of(rule, parameter.sources.front().dimensions.size());
  const std::vector<std::string> stacked = axes.stacked();
  const bool stacks_parts = std::ranges::find(stacked, kPartAxis) != stacked.end();
  AxisSizes sizes = collect_sizes(rule, weights, parameter);
  check_complete(rule, weights, parameter, sizes.common, stacks_parts);
  if (has_axis(axes.from, rule.join)) {
    std::vector<std::uint64_t> starts;
    std::uint64_t total = 0;
    for (const Places& joined : sizes.joined) {
      starts.push_back(total);
      total += joined.at(rule.join);
    }
    sizes.common[rule.join] = total;
    for (ParameterSource& source : parameter.sources) {
      source.at[rule.join] = starts[source.position];
    }
  }
  for (const AxisGroup& group : axes.to) {
    parameter.dimensions.emplace_back();
    for (const std::string& axis : group) {
      parameter.dimensions.back().push_back({axis, sizes.common.at(axis)});
    }
  }
}

}  // namespace quantmill
