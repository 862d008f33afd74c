#include "plan/search_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kTaskElements = std::uint64_t{1} << 20;
constexpr std::uint64_t kSeedRows =
    2048;  // the script that compat seed reproduces searches on so many rows

// "layers.3.down" -> "layers.#.down": activations of different layers are one family.
std::string family_of(const std::string& name) {
  std::string family;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) {
      family += c;
    } else if (family.empty() || family.back() != '#') {
      family += '#';
    }
  }
  return family;
}

// Families of activations that have statistics in at least one layer.
std::set<std::string> recorded_families(const ResolvedArchitecture& architecture,
                                        const Statistics& statistics) {
  std::set<std::string> families;
  for (const Activation& activation : architecture.activations) {
    if (!activation.statistics.empty() && statistics.contains(activation.statistics)) {
      families.insert(family_of(activation.name));
    }
  }
  return families;
}

void check_recorded(const ResolvedArchitecture& architecture, const Statistics& statistics) {
  const std::set<std::string> families = recorded_families(architecture, statistics);
  for (const Activation& activation : architecture.activations) {
    if (activation.statistics.empty()) {
      continue;
    }
    const auto found = statistics.find(activation.statistics);
    if (found == statistics.end()) {
      if (activation.statistics_optional && !families.contains(family_of(activation.name))) {
        continue;
      }
      throw Error(ErrorCode::kInput,
                  fmt::format("the statistics have no input '{}', which the scales of '{}' need; "
                              "record it, or leave "
                              "the model unscaled with --scaling none",
                              activation.statistics,
                              activation.name));
    }
    const std::uint64_t wanted = activation.columns.num_columns();
    if (found->second.absmean.size() != wanted) {
      throw Error(
          ErrorCode::kInput,
          fmt::format(
              "the statistics of '{}' have {} channels, but the weights that read it have {} "
              "columns; "
              "they are of another model, or a tensor-parallel part is missing or too short",
              activation.statistics,
              found->second.absmean.size(),
              wanted));
    }
  }
}

// Recorded inputs that no activation uses: an error if that is all of them, a notice otherwise.
void check_unused(const Statistics& statistics, Plan& plan) {
  std::set<std::string> known(plan.architecture.known_statistics.begin(),
                              plan.architecture.known_statistics.end());
  for (const Activation& activation : plan.architecture.activations) {
    known.insert(activation.statistics);
  }
  std::vector<std::string> unused;
  for (const auto& [name, input] : statistics) {
    if (!known.contains(name)) {
      unused.push_back(name);
    }
  }
  if (unused.empty()) {
    return;
  }
  const std::string text =
      fmt::format("{} of {} recorded inputs match nothing in the architecture '{}', e.g. '{}'",
                  unused.size(),
                  statistics.size(),
                  plan.architecture.name,
                  unused.front());
  if (unused.size() == statistics.size()) {
    throw Error(ErrorCode::kInput,
                text + "; these statistics are of another model or use other names");
  }
  plan.notices.push_back(text);
}

bool has_tokens(const Statistics& statistics, const Activation& activation) {
  const auto found = statistics.find(activation.statistics);
  return !activation.statistics.empty() && found != statistics.end() &&
         !(found->second.has_count && found->second.count == 0);
}

// Why the scales of a group can't be searched; empty if they can.
std::string reason_not_searched(const Plan& plan,
                                const FoldGroup& group,
                                const Statistics& statistics,
                                const std::vector<bool>& quantized) {
  if (plan.recipe.scaling == Scaling::kNone) {
    return "scaling is off";
  }
  if (plan.recipe.fold_scales == FoldScales::kOff) {
    return "folding is off";
  }
  if (!group.no_fold_reason.empty()) {
    return group.no_fold_reason;
  }
  bool recorded = false;
  bool tokens = false;
  bool reader = false;
  for (const std::size_t index : group.activations) {
    const Activation& activation = plan.architecture.activations[index];
    recorded =
        recorded || (!activation.statistics.empty() && statistics.contains(activation.statistics));
    tokens = tokens || has_tokens(statistics, activation);
    reader = reader || std::ranges::any_of(activation.readers,
                                           [&](std::size_t tensor) { return quantized[tensor]; });
  }
  if (!reader) {
    return "none of its readers is quantized";
  }
  if (!recorded) {
    return "no statistics were recorded for it";
  }
  return tokens ? "" : "no token reached it while statistics were recorded";
}

// Every `step`-th row of the readers, put one below the other, up to the script's number of rows.
std::uint64_t seed_row_step(const Plan& plan,
                            const Activation& activation,
                            const std::vector<bool>& quantized) {
  std::uint64_t rows = 0;
  for (const std::size_t reader : activation.readers) {
    rows += quantized[reader] ? plan.tensors[reader].rows : 0;
  }
  return std::max<std::uint64_t>(1, rows > kSeedRows ? rows / kSeedRows : 1);
}

void cut_group_tasks(std::size_t group,
                     const Statistics& statistics,
                     const std::vector<bool>& quantized,
                     Plan& plan) {
  for (const std::size_t index : plan.architecture.fold_groups[group].activations) {
    const Activation& activation = plan.architecture.activations[index];
    if (!has_tokens(statistics, activation)) {
      continue;
    }
    const bool seed = plan.recipe.compat == Compat::kSeed;
    const std::uint64_t step = seed ? seed_row_step(plan, activation, quantized) : 1;
    const std::uint64_t limit = seed && step > 1 ? step * kSeedRows : UINT64_MAX;
    std::uint64_t offset = 0;  // of this reader's first row, when all are put one below the other
    for (const std::size_t reader : activation.readers) {
      if (!quantized[reader]) {
        continue;
      }
      const TensorWork& work = plan.tensors[reader];
      const std::uint64_t piece = std::max<std::uint64_t>(1, kTaskElements / work.cols) * step;
      const std::uint64_t last = std::min(work.rows, limit > offset ? limit - offset : 0);
      for (std::uint64_t begin = (step - offset % step) % step; begin < last; begin += piece) {
        const std::uint64_t end = std::min(last, begin + piece);
        plan.search_tasks.push_back(
            {group, index, reader, begin, end, step, (end - begin + step - 1) / step * work.cols});
      }
      offset += work.rows;
    }
  }
}

}  // namespace

void decide_groups(const Statistics& statistics, const std::vector<bool>& quantized, Plan& plan) {
  const bool scaling =
      plan.recipe.scaling != Scaling::kNone && plan.recipe.fold_scales != FoldScales::kOff;
  if (scaling) {
    if (statistics.empty()) {
      throw Error(ErrorCode::kUsage,
                  "scaling needs activation statistics: give --stats FILE.h5 or --stats PREFIX (of "
                  "PREFIX.tp0.pt …), "
                  "or quantize without them with --scaling none");
    }
    check_unused(statistics, plan);
    check_recorded(plan.architecture, statistics);
  }
  std::map<std::string, std::vector<std::string>> neutral;
  for (std::size_t group = 0; group < plan.architecture.fold_groups.size(); ++group) {
    const FoldGroup& fold_group = plan.architecture.fold_groups[group];
    GroupPlan& decided = plan.groups[group];
    decided.reason = reason_not_searched(plan, fold_group, statistics, quantized);
    decided.searched = decided.reason.empty();
    if (!decided.searched && scaling) {
      neutral[decided.reason].push_back(fold_group.name);
    }
  }
  for (const auto& [reason, names] : neutral) {
    plan.notices.push_back(
        fmt::format("not scaled: {}{} ({})",
                    names.front(),
                    names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "",
                    reason));
  }
}

void cut_search_tasks(const Statistics& statistics,
                      const std::vector<bool>& quantized,
                      Plan& plan) {
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    if (plan.groups[group].searched) {
      cut_group_tasks(group, statistics, quantized, plan);
    }
  }
}

std::vector<double> pooled_absmean(const ResolvedArchitecture& architecture,
                                   const FoldGroup& group,
                                   const Statistics& statistics) {
  std::vector<const Activation*> recorded;
  bool counted = true;
  for (const std::size_t index : group.activations) {
    const Activation& activation = architecture.activations[index];
    if (has_tokens(statistics, activation)) {
      recorded.push_back(&activation);
      counted = counted && statistics.at(activation.statistics).has_count;
    }
  }
  if (recorded.empty()) {
    return {};
  }
  const bool by_count = counted && recorded.size() > 1;  // a single one is kept to the last bit
  std::vector<double> sums(group.num_channels, 0.0);
  double total = 0;
  for (const Activation* activation : recorded) {
    const InputStatistics& input = statistics.at(activation->statistics);
    const double weight = by_count ? static_cast<double>(input.count) : 1.0;
    const double share = weight / static_cast<double>(activation->columns.repeats);
    total += weight;
    for (std::size_t column = 0; column < input.absmean.size(); ++column) {
      sums[activation->columns.channel_of(column)] += share * input.absmean[column];
    }
  }
  for (double& value : sums) {
    value /= total;
  }
  return sums;
}

}  // namespace quantmill
