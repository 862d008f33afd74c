#include "stats/merge.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"

namespace quantmill {

namespace {

// What is compared with what, as "rank 1" and "rank 0", for messages.
struct Label {
  std::string_view noun;
  std::size_t index = 0;
  std::size_t first_index = 0;

  [[nodiscard]] std::string other() const { return fmt::format("{} {}", noun, index); }

  [[nodiscard]] std::string first() const { return fmt::format("{} {}", noun, first_index); }
};

[[noreturn]] void refuse(const std::string& name, std::string_view why) {
  throw Error(ErrorCode::kInput, fmt::format("statistics of {}: {}", name, why));
}

// Files that several inputs came from, each once, in order; long lists are told by their ends.
std::string join_sources(const std::vector<std::string>& of_inputs) {
  constexpr std::size_t kMaxListed = 8;
  std::vector<std::string> sources;
  for (const std::string& source : of_inputs) {
    if (!source.empty() && std::find(sources.begin(), sources.end(), source) == sources.end()) {
      sources.push_back(source);
    }
  }
  if (sources.size() <= kMaxListed) {
    return fmt::format("{}", fmt::join(sources, ", "));
  }
  return fmt::format("{} ... {} ({} files)", sources.front(), sources.back(), sources.size());
}

void check_same_kinds(const std::string& name,
                      const InputStatistics& first,
                      const InputStatistics& other,
                      const Label& label) {
  const auto check = [&](bool is_in_first, bool is_in_other, std::string_view kind) {
    if (is_in_first != is_in_other) {
      refuse(name,
             fmt::format("{} {} {}, {} {}",
                         label.other(),
                         is_in_other ? "has" : "lacks",
                         kind,
                         label.first(),
                         is_in_first ? "has it" : "does not"));
    }
  };
  check(!first.sqmean.empty(), !other.sqmean.empty(), "sqmean");
  check(!first.absmax.empty(), !other.absmax.empty(), "absmax");
}

void check_same_length(const std::string& name,
                       const InputStatistics& first,
                       const InputStatistics& other,
                       const Label& label) {
  if (first.absmean.size() != other.absmean.size()) {
    refuse(name,
           fmt::format("{} has {} channels, {} has {}",
                       label.other(),
                       other.absmean.size(),
                       label.first(),
                       first.absmean.size()));
  }
}

// Every rank sees every token, whichever channels it holds.
void check_same_count(const std::string& name,
                      const InputStatistics& first,
                      const InputStatistics& other,
                      const Label& label) {
  const auto shown = [](const InputStatistics& input) {
    return input.has_count ? fmt::format("counted {} tokens", input.count)
                           : std::string("has no count");
  };
  if (first.has_count != other.has_count || first.count != other.count) {
    refuse(name,
           fmt::format("{} {}, rank 0 {}; all must come from the same run",
                       label.other(),
                       shown(other),
                       shown(first)));
  }
}

void check_agreement(const std::string& name,
                     const InputStatistics& first,
                     const InputStatistics& other,
                     const Label& label) {
  constexpr double kRelative = 1e-2;
  constexpr double kOfLargest = 1e-6;
  const double floor = kOfLargest * *std::max_element(first.absmean.begin(), first.absmean.end());
  for (std::size_t channel = 0; channel < first.absmean.size(); ++channel) {
    const double a = first.absmean[channel];
    const double b = other.absmean[channel];
    if (std::max(a, b) - std::min(a, b) > std::max(kRelative * std::max(a, b), floor)) {
      refuse(name,
             fmt::format("every rank should have seen the same values, but the absmean of channel "
                         "{} is {} on rank 0 and {} on {}",
                         channel,
                         a,
                         b,
                         label.other()));
    }
  }
}

void append(std::vector<double>& to, const std::vector<double>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

InputStatistics merge_parts(const std::string& name,
                            const std::vector<const InputStatistics*>& parts,
                            Partition partition) {
  InputStatistics merged = *parts.front();
  merged.partition = partition;
  merged.part_channels.clear();
  std::vector<std::string> sources;
  sources.reserve(parts.size());
  for (const InputStatistics* part : parts) {
    sources.push_back(part->source);
  }
  merged.source = join_sources(sources);
  if (partition == Partition::kRow) {
    merged.part_channels.push_back(merged.absmean.size());
  }
  for (std::size_t rank = 1; rank < parts.size(); ++rank) {
    const InputStatistics& part = *parts[rank];
    const Label label{"rank", rank};
    check_same_kinds(name, *parts.front(), part, label);
    check_same_count(name, *parts.front(), part, label);
    if (partition == Partition::kReplicated) {
      check_same_length(name, *parts.front(), part, label);
      check_agreement(name, *parts.front(), part, label);
      continue;
    }
    append(merged.absmean, part.absmean);
    append(merged.sqmean, part.sqmean);
    append(merged.absmax, part.absmax);
    merged.part_channels.push_back(part.absmean.size());
  }
  return merged;
}

// Moves a weighted mean towards another by that one's share of the tokens: equal means stay as they
// are.
void move_means(std::vector<double>& means, const std::vector<double>& others, double share) {
  for (std::size_t channel = 0; channel < means.size(); ++channel) {
    means[channel] += (others[channel] - means[channel]) * share;
  }
}

void add_run(const std::string& name,
             InputStatistics& merged,
             const InputStatistics& run,
             const Label& label) {
  check_same_length(name, merged, run, label);
  check_same_kinds(name, merged, run, label);
  if (merged.partition != run.partition) {
    refuse(name,
           fmt::format("{} and {} split it over ranks differently", label.first(), label.other()));
  }
  const auto total = checked_add(merged.count, run.count);
  if (!total) {
    refuse(name, "the runs' token counts do not fit 64 bits together");
  }
  if (*total > 0) {
    const double share = static_cast<double>(run.count) / static_cast<double>(*total);
    move_means(merged.absmean, run.absmean, share);
    move_means(merged.sqmean, run.sqmean, share);
  }
  for (std::size_t channel = 0; channel < merged.absmax.size(); ++channel) {
    merged.absmax[channel] = std::max(merged.absmax[channel], run.absmax[channel]);
  }
  merged.count = *total;
  const bool have_grams = merged.gram_tokens > 0 && run.gram_tokens > 0;
  merged.gram_tokens =
      have_grams ? checked_add(merged.gram_tokens, run.gram_tokens).value_or(0) : 0;
  if (merged.part_channels != run.part_channels) {
    merged.part_channels = {merged.absmean.size()};
  }
}

}  // namespace

Statistics merge_tensor_parallel(const std::vector<Statistics>& parts,
                                 const PartitionOf& partition_of) {
  if (parts.empty()) {
    throw Error(ErrorCode::kInput, "statistics: there are no parts to merge");
  }
  for (std::size_t rank = 1; rank < parts.size(); ++rank) {
    for (const auto& [name, input] : parts[rank]) {
      if (!parts.front().contains(name)) {
        refuse(name, fmt::format("rank {} has it, rank 0 does not", rank));
      }
    }
  }
  Statistics merged;
  for (const auto& [name, input] : parts.front()) {
    std::vector<const InputStatistics*> found;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      const auto entry = parts[rank].find(name);
      if (entry == parts[rank].end()) {
        refuse(name, fmt::format("rank 0 has it, rank {} does not", rank));
      }
      found.push_back(&entry->second);
    }
    merged.emplace(name, merge_parts(name, found, partition_of(name)));
  }
  check_statistics(merged);
  return merged;
}

void RunMerger::add(Statistics&& run) {
  const std::size_t number = num_runs_++;
  for (auto& [name, input] : run) {
    Origin& origin = origins_[name];
    origin.sources.push_back(input.source);
    const auto [found, is_new] = merged_.try_emplace(name);
    if (is_new) {
      origin.first_run = number;
      found->second = std::move(input);
      continue;
    }
    InputStatistics& merged = found->second;
    if (!merged.has_count || !input.has_count) {
      refuse(name,
             fmt::format("run {} has no token count, so it cannot be weighted",
                         merged.has_count ? number : origin.first_run));
    }
    add_run(name, merged, input, {"run", number, origin.first_run});
  }
}

Statistics RunMerger::finish() {
  if (num_runs_ == 0) {
    throw Error(ErrorCode::kInput, "statistics: there are no runs to merge");
  }
  for (auto& [name, input] : merged_) {
    input.source = join_sources(origins_.at(name).sources);
  }
  check_statistics(merged_);
  return std::move(merged_);
}

}  // namespace quantmill
