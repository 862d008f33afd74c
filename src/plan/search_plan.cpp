#include "plan/search_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "plan/kv_scales.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kTaskElements = std::uint64_t{1} << 20;
// Beyond this share of recorded inputs that match nothing, the rest matched by accident.
constexpr double kLargestUnusedShare = 0.5;
constexpr std::size_t kNamesInNotice = 8;
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
std::set<std::string> recorded_families(const ResolvedArchitecture& architecture) {
  std::set<std::string> families;
  for (const Activation& activation : architecture.activations) {
    if (!activation.statistics.empty()) {
      families.insert(family_of(activation.name));
    }
  }
  return families;
}

void check_recorded(const ResolvedArchitecture& architecture, const Statistics& statistics) {
  const std::set<std::string> families = recorded_families(architecture);
  for (const Activation& activation : architecture.activations) {
    if (activation.recorded_as.empty()) {
      continue;
    }
    if (activation.statistics.empty()) {
      // Nothing could be folded, or nobody recorded such inputs in any layer; parts run apart.
      if (!activation.no_fold_reason.empty() || !activation.part.empty() ||
          (activation.statistics_optional && !families.contains(family_of(activation.name)))) {
        continue;
      }
      throw Error(ErrorCode::kInput,
                  fmt::format("the statistics have no input '{}', which the scales of '{}' need; "
                              "record it, or leave "
                              "the model unscaled with --scaling none",
                              activation.recorded_as.front(),
                              activation.name));
    }
    const std::size_t found = statistics.at(activation.statistics).absmean.size();
    if (found != activation.reader_columns) {
      throw Error(
          ErrorCode::kInput,
          fmt::format(
              "the statistics of '{}' have {} channels, but the weights that read it have {} "
              "columns; "
              "they are of another model, or a tensor-parallel part is missing or too short",
              activation.statistics,
              found,
              activation.reader_columns));
    }
  }
}

// Every name that an activation's record may have.
std::set<std::string> known_names(const ResolvedArchitecture& architecture) {
  std::set<std::string> known(architecture.known_statistics.begin(),
                              architecture.known_statistics.end());
  for (const Activation& activation : architecture.activations) {
    for (const std::string& name : activation.recorded_as) {
      for (const std::string& prefix : architecture.prefixes) {
        known.insert(prefix + name);
      }
    }
  }
  return known;
}

// The first few names, and how many more there are.
std::string some_of(const std::vector<std::string>& names) {
  const auto shown = static_cast<std::ptrdiff_t>(std::min(names.size(), kNamesInNotice));
  return fmt::format("{}{}",
                     fmt::join(names.begin(), names.begin() + shown, ", "),
                     names.size() > kNamesInNotice
                         ? fmt::format(" and {} more", names.size() - kNamesInNotice)
                         : "");
}

// Recorded inputs that no activation uses: an error if they are most of them, a notice otherwise.
void check_unused(const Statistics& statistics, Plan& plan) {
  const std::set<std::string> known = known_names(plan.architecture);
  std::vector<std::string> unused;
  for (const auto& [name, input] : statistics) {
    if (!known.contains(name) && !is_cache_record(name)) {
      unused.push_back(name);
    }
  }
  if (unused.empty()) {
    return;
  }
  const std::string text =
      fmt::format("{} of {} recorded inputs match nothing in the architecture '{}': {}",
                  unused.size(),
                  statistics.size(),
                  plan.architecture.name,
                  some_of(unused));
  if (static_cast<double>(unused.size()) >
      kLargestUnusedShare * static_cast<double>(statistics.size())) {
    throw Error(ErrorCode::kInput,
                text + "; these statistics are of another model or use other names");
  }
  plan.notices.push_back(text);
}

bool is_recorded(const Statistics& statistics, const Activation& activation) {
  return !activation.statistics.empty() && statistics.contains(activation.statistics);
}

// Whether an activation's record is good enough to choose scales by.
bool has_tokens(const Statistics& statistics,
                const Activation& activation,
                std::uint64_t min_tokens) {
  if (!is_recorded(statistics, activation)) {
    return false;
  }
  const InputStatistics& input = statistics.at(activation.statistics);
  return !input.has_count || (input.count > 0 && input.count >= min_tokens);
}

// All that reached a group's activations, where their records say so.
std::optional<std::uint64_t> tokens_of(const ResolvedArchitecture& architecture,
                                       const FoldGroup& group,
                                       const Statistics& statistics) {
  std::optional<std::uint64_t> tokens;
  for (const std::size_t index : group.activations) {
    const Activation& activation = architecture.activations[index];
    if (is_recorded(statistics, activation) && statistics.at(activation.statistics).has_count) {
      tokens = tokens.value_or(0) + statistics.at(activation.statistics).count;
    }
  }
  return tokens;
}

bool is_whole_blocks(const ColumnMap& columns, std::uint64_t block) {
  return columns.start % block == 0 && columns.num_columns() % block == 0;
}

// Why the scales of a group can't be searched; empty if they can.
std::string reason_not_searched(const Plan& plan,
                                const FoldGroup& group,
                                const Statistics& statistics) {
  if (plan.recipe.scaling == Scaling::kNone) {
    return "scaling is off";
  }
  if (plan.recipe.fold_scales == FoldScales::kOff) {
    return "folding is off";
  }
  if (!group.no_fold_reason.empty()) {
    return group.no_fold_reason;
  }
  const bool by_blocks = plan.recipe.scaling == Scaling::kBlockGrid;
  bool recorded = false;
  bool tokens = false;
  bool reader = false;
  bool whole_blocks = true;
  for (const std::size_t index : group.activations) {
    const Activation& activation = plan.architecture.activations[index];
    recorded = recorded || !activation.statistics.empty();
    tokens = tokens || has_tokens(statistics, activation, plan.recipe.min_tokens);
    for (const std::size_t tensor : activation.readers) {
      if (const std::optional<Scheme> scheme = plan.choices[tensor].scheme) {
        reader = reader || !by_blocks || is_mx(searched_scheme(*scheme));
        whole_blocks = whole_blocks && is_whole_blocks(activation.columns,
                                                       columns_together(searched_scheme(*scheme)));
      }
    }
  }
  if (!reader) {
    return by_blocks ? "none of its readers is quantized to MX"
                     : "none of its readers is quantized";
  }
  if (!whole_blocks) {
    return "its columns are not whole blocks in the readers";
  }
  if (!recorded) {
    return "no statistics were recorded for it";
  }
  return tokens ? ""
                : fmt::format("fewer than {} tokens reached it while statistics were recorded",
                              std::max<std::uint64_t>(1, plan.recipe.min_tokens));
}

// Every `step`-th row of the readers, put one below the other, up to the script's number of rows.
std::uint64_t seed_row_step(const Plan& plan, const Activation& activation) {
  std::uint64_t rows = 0;
  for (const std::size_t reader : activation.readers) {
    rows +=
        plan.choices[reader].is_quantized() ? plan.architecture.tensors[reader].out_features() : 0;
  }
  return std::max<std::uint64_t>(1, rows > kSeedRows ? rows / kSeedRows : 1);
}

void cut_group_tasks(std::size_t group, const Statistics& statistics, Plan& plan) {
  for (const std::size_t index : plan.architecture.fold_groups[group].activations) {
    const Activation& activation = plan.architecture.activations[index];
    if (!has_tokens(statistics, activation, plan.recipe.min_tokens)) {
      continue;
    }
    const bool seed = plan.recipe.compat == Compat::kSeed;
    const std::uint64_t step = seed ? seed_row_step(plan, activation) : 1;
    const std::uint64_t limit = seed && step > 1 ? step * kSeedRows : UINT64_MAX;
    std::uint64_t offset = 0;  // of this reader's first row, when all are put one below the other
    for (const std::size_t reader : activation.readers) {
      const std::optional<Scheme> scheme = plan.choices[reader].scheme;
      if (!scheme) {
        continue;
      }
      const ModelTensor& tensor = plan.architecture.tensors[reader];
      const std::uint64_t rows = tensor.out_features();
      const std::uint64_t cols = tensor.in_features();
      if (plan.recipe.scaling == Scaling::kBlockGrid) {
        if (is_mx(searched_scheme(*scheme))) {
          const std::uint64_t read = rows + std::min(rows, kBlockGridRows);
          plan.search_tasks.push_back({group, index, reader, 0, rows, 1, read * cols});
        }
        continue;
      }
      const std::uint64_t together = rows_together(searched_scheme(*scheme));
      const std::uint64_t piece =
          std::max(together, kTaskElements / cols / together * together) * step;
      const std::uint64_t last = std::min(rows, limit > offset ? limit - offset : 0);
      for (std::uint64_t begin = (step - offset % step) % step; begin < last; begin += piece) {
        const std::uint64_t end = std::min(last, begin + piece);
        plan.search_tasks.push_back(
            {group, index, reader, begin, end, step, (end - begin + step - 1) / step * cols});
      }
      offset += rows;
    }
  }
}

}  // namespace

void match_statistics(const Statistics& statistics, ResolvedArchitecture& architecture) {
  for (Activation& activation : architecture.activations) {
    activation.statistics.clear();
    for (const std::string& name : activation.recorded_as) {
      for (const std::string& prefix : architecture.prefixes) {
        if (activation.statistics.empty() && statistics.contains(prefix + name)) {
          activation.statistics = prefix + name;
        }
      }
    }
  }
}

void decide_groups(const Statistics& statistics, Plan& plan) {
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
    decided.reason = reason_not_searched(plan, fold_group, statistics);
    decided.searched = decided.reason.empty();
    decided.tokens = tokens_of(plan.architecture, fold_group, statistics);
    if (!decided.searched && scaling) {
      neutral[decided.reason].push_back(fold_group.name);
    }
  }
  for (const auto& [reason, names] : neutral) {
    plan.notices.push_back(fmt::format("not scaled: {} ({})", some_of(names), reason));
  }
}

void cut_search_tasks(const Statistics& statistics, Plan& plan) {
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    if (plan.groups[group].searched) {
      cut_group_tasks(group, statistics, plan);
    }
  }
}

std::vector<double> pooled_absmean(const ResolvedArchitecture& architecture,
                                   const FoldGroup& group,
                                   const Statistics& statistics,
                                   std::uint64_t min_tokens) {
  std::vector<const Activation*> recorded;
  bool counted = true;
  for (const std::size_t index : group.activations) {
    const Activation& activation = architecture.activations[index];
    if (has_tokens(statistics, activation, min_tokens)) {
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
    const ColumnMap& columns = activation->columns;
    const double share = weight / static_cast<double>(columns.repeats);
    total += weight;
    for (std::size_t column = columns.start; column < columns.end(); ++column) {
      sums[activation->columns.channel_of(column)] += share * input.absmean[column];
    }
  }
  for (double& value : sums) {
    value /= total;
  }
  return sums;
}

}  // namespace quantmill
