#include "pipeline/block_search.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include <fmt/format.h>

#include "pipeline/chunk_searcher.h"
#include "pipeline/search.h"

namespace quantmill {
namespace {

constexpr std::size_t kExchangedValues = std::size_t{1} << 22;  // 32 MB at a time

// One result for each of some chunks, zeros at first.
class ChunkResults {
 public:
  ChunkResults(const Plan& plan,
               std::span<const SearchChunk> chunks,
               std::span<const std::size_t> wanted,
               std::size_t ChunkSizes::*size) {
    std::size_t end = 0;
    for (const std::size_t chunk : wanted) {
      const std::size_t count = sizes_of(plan, chunks[chunk]).*size;
      places_[chunk] = {end, count};
      end += count;
    }
    values_.resize(end);
  }

  [[nodiscard]] bool has(std::size_t chunk) const { return places_.contains(chunk); }

  [[nodiscard]] std::span<double> of(std::size_t chunk) {
    const auto [begin, count] = places_.at(chunk);
    return std::span(values_).subspan(begin, count);
  }

  [[nodiscard]] std::span<double> all() { return values_; }

 private:
  std::map<std::size_t, std::pair<std::size_t, std::size_t>> places_;
  std::vector<double> values_;
};

// A group that was cut: indices of its chunks [first, last), and what they add up to.
struct CutGroup {
  std::size_t first = 0;
  std::size_t last = 0;
  MagnitudeTable table;
  std::vector<double> errors;
};

GroupScales to_scales(std::span<const double> result) {
  GroupScales scales;
  const double by_blocks = std::numeric_limits<double>::quiet_NaN();
  scales.alphas = {0, by_blocks};
  scales.betas = {0, by_blocks};
  scales.alpha = by_blocks;
  scales.beta = by_blocks;
  scales.errors = {result[0], result[1]};
  for (const double s : result.subspan(kNumBlockErrors)) {
    scales.s.push_back(static_cast<float>(s));
  }
  return scales;
}

// The search of a job, on this rank.
class BlockSearch {
 public:
  BlockSearch(const Team& team,
              const Context& context,
              const Checkpoint& checkpoint,
              const Plan& plan,
              const Statistics& statistics,
              const ColumnImportance& importance,
              JobJournal& journal,
              const ChunkLimits& limits)
      : team_(team),
        plan_(plan),
        journal_(journal),
        chunks_(cut_into_chunks(plan, limits)),
        results_(plan.groups.size()) {
    const bool counted = counts_tokens(statistics);
    for (int worker = 0; worker < team.num_threads; ++worker) {
      workers_.emplace_back(context, checkpoint, plan, statistics, counted, importance);
    }
    const std::vector<bool> is_wanted = take_earlier();
    waves_ = make_waves(plan, chunks_, is_wanted, team.node_ranks.size(), limits);
  }

  ScaleTable run() {
    for (const SearchWave& wave : waves_) {
      search_wave(wave);
    }
    return all_scales();
  }

 private:
  // What earlier runs found. Returns, by group, whether it is to be searched.
  std::vector<bool> take_earlier() {
    std::vector<bool> is_wanted(plan_.groups.size(), false);
    for (const SearchChunk& chunk : chunks_) {
      if (!begins_group(chunk)) {
        continue;
      }
      const auto earlier =
          journal_.find(JournalPhase::kSearch, chunk.first, result_size(chunk.group));
      is_wanted[chunk.group] = !earlier;
      if (team_.is_leader() && earlier) {  // one rank brings it in
        results_[chunk.group].assign(earlier->begin(), earlier->end());
      }
    }
    return is_wanted;
  }

  [[nodiscard]] bool begins_group(const SearchChunk& chunk) const {
    return chunk.first == 0 || plan_.search_tasks[chunk.first - 1].group != chunk.group;
  }

  [[nodiscard]] std::size_t result_size(std::size_t group) const {
    return kNumBlockErrors + plan_.architecture.fold_groups[group].num_channels;
  }

  // Room for the result of a group that this rank chooses for.
  std::span<double> new_result(std::size_t group) {
    results_[group].resize(result_size(group));
    return results_[group];
  }

  // Every group's, from whoever has its result. Some groups at a time: all results are twice as
  // large as the table.
  ScaleTable all_scales() {
    ScaleTable table = neutral_scales(plan_);
    std::vector<std::size_t> groups;
    std::vector<double> values;
    const auto exchange = [&] {
      team_.world.sum_disjoint(values);
      std::span<const double> rest = values;
      for (const std::size_t group : groups) {
        table[plan_.architecture.fold_groups[group].name] =
            to_scales(rest.first(result_size(group)));
        rest = rest.subspan(result_size(group));
      }
      groups.clear();
      values.clear();
    };
    for (const SearchChunk& chunk : chunks_) {
      if (!begins_group(chunk)) {
        continue;
      }
      groups.push_back(chunk.group);
      std::vector<double>& result = results_[chunk.group];
      result.resize(result_size(chunk.group));  // zeros, if another rank has it
      values.insert(values.end(), result.begin(), result.end());
      std::vector<double>().swap(result);
      if (values.size() >= kExchangedValues) {
        exchange();
      }
    }
    exchange();
    return table;
  }

  // The group of the chunks [first, last) is chosen.
  void note(std::size_t first, std::size_t last) {
    const std::size_t task = chunks_[first].first;
    journal_.add(JournalPhase::kSearch, task, results_[chunks_[first].group]);
    for (std::size_t other = task + 1; other < chunks_[last - 1].last; ++other) {
      journal_.add(JournalPhase::kSearch, other, {});  // it counts as finished too
    }
  }

  void search_wave(const SearchWave& wave) {
    const WaveShare share = share_of_node(chunks_, wave, team_.node_ranks, team_.node_index);
    std::vector<std::size_t> cut;  // of this node
    std::ranges::copy_if(share.searched, std::back_inserter(cut), [&](std::size_t chunk) {
      return !chunks_[chunk].is_whole;
    });
    ChunkResults row_weights(plan_, chunks_, cut, &ChunkSizes::row_weights);
    std::vector<CutGroup> groups = cut_groups(wave);
    if (!wave.cut.empty()) {
      ChunkResults magnitudes(plan_, chunks_, cut, &ChunkSizes::magnitudes);
      run_round(share.measured,
                &SearchChunk::measure_cost,
                [&](std::size_t chunk, ChunkSearcher& worker) {
                  worker.measure(chunks_[chunk], magnitudes.of(chunk), row_weights.of(chunk));
                });
      team_.node.sum_disjoint(row_weights.all());
      for (CutGroup& group : groups) {
        sum_chunks(group,
                   magnitudes,
                   &ChunkSizes::magnitudes,
                   [&](std::size_t chunk, std::span<const double> found) {
                     add_to_table(plan_, chunks_[chunk], found, group.table);
                   });
      }
    }
    ChunkResults errors(plan_, chunks_, cut, &ChunkSizes::errors);
    run_round(
        share.searched, &SearchChunk::search_cost, [&](std::size_t chunk, ChunkSearcher& worker) {
          worker.search(
              chunks_[chunk], table_of(groups, chunk), row_weights.of(chunk), errors.of(chunk));
        });
    for (CutGroup& group : groups) {
      sum_chunks(group,
                 errors,
                 &ChunkSizes::errors,
                 [&](std::size_t /*chunk*/, std::span<const double> found) {
                   group.errors.resize(found.size());
                   std::ranges::transform(group.errors, found, group.errors.begin(), std::plus<>());
                 });
    }
    choose(groups);
  }

  [[nodiscard]] std::vector<CutGroup> cut_groups(const SearchWave& wave) const {
    std::vector<CutGroup> groups;
    for (const std::size_t chunk : wave.cut) {
      if (groups.empty() || chunks_[groups.back().first].group != chunks_[chunk].group) {
        groups.push_back({chunk, chunk, {}, {}});
      }
      groups.back().last = chunk + 1;
    }
    return groups;
  }

  [[nodiscard]] static const MagnitudeTable& table_of(std::span<const CutGroup> groups,
                                                      std::size_t chunk) {
    return std::ranges::upper_bound(groups, chunk, {}, &CutGroup::last)->table;
  }

  // Runs this node's share of a round: of groups that are whole all there is to do, of others what
  // `run_cut` says.
  void run_round(const std::vector<std::size_t>& share,
                 std::uint64_t SearchChunk::*cost,
                 const std::function<void(std::size_t, ChunkSearcher&)>& run_cut) {
    const std::size_t num_rounds = waves_.front().cut.empty() ? 1 : 2 * waves_.size();
    ++round_;
    const std::string phase =
        num_rounds == 1 ? "search" : fmt::format("search (round {} of {})", round_, num_rounds);
    run_tasks(
        team_,
        {phase,
         share,
         [&](std::size_t index) {
           const SearchChunk& chunk = chunks_[index];
           return 2 * (chunk.is_whole ? chunk.cost : chunk.*cost);
         }},
        [&](std::size_t index, int worker) {
          const SearchChunk& chunk = chunks_[index];
          ChunkSearcher& searcher = workers_[static_cast<std::size_t>(worker)];
          if (!chunk.is_whole) {
            run_cut(index, searcher);
            return;
          }
          searcher.search_whole(chunk, new_result(chunk.group));
          note(index, index + 1);
        },
        [&] { journal_.flush(); });
  }

  // Calls add(chunk, its result) for every chunk of the group, in order, on every rank. `mine`:
  // what this rank computed, zeros for what others did.
  void sum_chunks(const CutGroup& group,
                  ChunkResults& mine,
                  std::size_t ChunkSizes::*size,
                  const std::function<void(std::size_t, std::span<const double>)>& add) {
    std::vector<std::size_t> chunks;
    for (std::size_t chunk = group.first; chunk < group.last; ++chunk) {
      chunks.push_back(chunk);
    }
    ChunkResults all(plan_, chunks_, chunks, size);
    for (const std::size_t chunk : chunks) {
      if (mine.has(chunk)) {
        std::ranges::copy(mine.of(chunk), all.of(chunk).begin());
      }
    }
    team_.world.sum_disjoint(all.all());
    for (const std::size_t chunk : chunks) {
      add(chunk, all.of(chunk));
    }
  }

  // Each group by one rank, for all: the C library of another could differ in the last bit of s.
  void choose(std::span<const CutGroup> groups) {
    const auto rank = static_cast<std::size_t>(team_.world.rank());
    const auto ranks = static_cast<std::size_t>(team_.world.size());
    team_.world.collectively([&] {
      for (std::size_t index = rank; index < groups.size(); index += ranks) {
        const CutGroup& group = groups[index];
        const std::size_t chosen = chunks_[group.first].group;
        workers_.front().choose(chosen, group.table, group.errors, new_result(chosen));
        note(group.first, group.last);
      }
      journal_.flush();
    });
  }

  const Team& team_;
  const Plan& plan_;
  JobJournal& journal_;
  std::vector<SearchChunk> chunks_;
  std::vector<SearchWave> waves_;
  std::size_t round_ = 0;
  std::vector<ChunkSearcher> workers_;
  std::vector<std::vector<double>> results_;  // by group, of those that this rank chose for
};

}  // namespace

ScaleTable search_blocks(const Team& team,
                         const Context& context,
                         const Checkpoint& checkpoint,
                         const Plan& plan,
                         const Statistics& statistics,
                         const ColumnImportance& importance,
                         JobJournal& journal,
                         const ChunkLimits& limits) {
  return BlockSearch(team, context, checkpoint, plan, statistics, importance, journal, limits)
      .run();
}

}  // namespace quantmill
