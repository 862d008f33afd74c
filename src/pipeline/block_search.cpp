#include "pipeline/block_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"

#include "kernels/mx.h"
#include "pipeline/activation_errors.h"
#include "pipeline/column_magnitudes.h"
#include "pipeline/device_errors.h"
#include "pipeline/finite_rows.h"
#include "pipeline/scheme_codec.h"
#include "pipeline/search.h"
#include "pipeline/weight_reader.h"
#include "quant/awq.h"
#include "quant/row_sample.h"

namespace quantmill {
namespace {

constexpr std::size_t kNumErrors = 2;  // of a group: without scaling, as chosen

// The plan's search tasks of one group: [first, last).
struct GroupTask {
  std::size_t group = 0;
  std::size_t first = 0;
  std::size_t last = 0;
  std::uint64_t cost = 0;
};

std::vector<GroupTask> group_tasks(const Plan& plan) {
  std::vector<GroupTask> tasks;
  for (std::size_t index = 0; index < plan.search_tasks.size(); ++index) {
    const SearchTask& search = plan.search_tasks[index];
    if (tasks.empty() || tasks.back().group != search.group) {
      tasks.push_back({search.group, index, index, 0});
    }
    tasks.back().last = index + 1;
    tasks.back().cost += search.cost;
  }
  return tasks;
}

// One worker: searches groups. Not thread-safe.
class GroupSearcher {
 public:
  GroupSearcher(const Context& context,
                const Checkpoint& checkpoint,
                const Plan& plan,
                const Statistics& statistics,
                bool counted,
                const ColumnImportance& importance)
      : context_(context),
        plan_(plan),
        statistics_(statistics),
        counted_(counted),
        importance_(importance),
        meter_(context, checkpoint, plan),
        reader_(context, checkpoint, plan.architecture),
        rows_(context) {}

  // Fills `result`: kNumErrors errors, then s of every channel.
  void search(const GroupTask& task, std::span<double> result) {
    const FoldGroup& group = plan_.architecture.fold_groups[task.group];
    measure(task);
    make_candidates(group);
    choose_units(group);
    errors_.assign(num_units_ * candidates_.size(), 0.0);
    for (std::size_t index = task.first; index < task.last; ++index) {
      const SearchTask& search_task = plan_.search_tasks[index];
      with_tensor_name(plan_.architecture.tensors[search_task.tensor].name,
                       [&] { add_weight_errors(search_task, samples_[index - task.first]); });
    }
    if (plan_.recipe.objective == Objective::kW4A4) {
      for (const std::size_t index : group.activations) {
        add_activation_errors(index);
      }
    }
    choose(group, result);
  }

 private:
  // Fills magnitudes_ and samples_.
  void measure(const GroupTask& task) {
    magnitudes_.clear();
    samples_.clear();
    for (std::size_t index = task.first; index < task.last; ++index) {
      const SearchTask& search = plan_.search_tasks[index];
      const Activation& activation = plan_.architecture.activations[search.activation];
      ColumnMagnitudes& found = magnitudes_[search.activation];
      found.squares.resize(activation.columns.num_columns());
      found.shares.resize(activation.columns.num_columns());
      samples_.push_back(sample_rows(meter_.add(plan_.architecture.tensors[search.tensor],
                                                activation.columns,
                                                column_importance(activation),
                                                {found.squares, found.shares}),
                                     kBlockGridRows));
    }
  }

  // One weight for each column of an activation's readers.
  std::span<const float> column_importance(const Activation& activation) {
    const auto known = importance_.table().find(activation.name);
    if (known != importance_.table().end()) {
      return known->second;
    }
    alike_.assign(activation.columns.num_columns(), 1.0F);
    return alike_;
  }

  void make_candidates(const FoldGroup& group) {
    const std::vector<double> absmean =
        pooled_absmean(plan_.architecture, group, statistics_, plan_.recipe.min_tokens);
    const bool by_shares = divides_by_shares(plan_.recipe);
    const std::vector<double> weights =
        by_shares ? pooled_weight_shares(plan_.architecture, group, magnitudes_)
                  : pooled_weight_rms(plan_.architecture, group, magnitudes_);
    const bool pow2 = plan_.recipe.fold_scales == FoldScales::kPow2;
    candidates_.clear();
    for (const ScaleExponents exponents : tried_exponents(plan_.recipe)) {
      candidates_.push_back(channel_scales(absmean, weights, exponents, pow2));
      // Half a step of the blocks' exponents; by shares it gains nothing.
      if (!pow2 && !by_shares) {
        candidates_.push_back(candidates_.back());
        for (float& s : candidates_.back()) {
          s *= std::numbers::sqrt2_v<float>;
        }
      }
    }
  }

  // What is chosen together: a block of channels, or the whole group.
  void choose_units(const FoldGroup& group) {
    by_blocks_ = std::ranges::all_of(group.activations, [&](std::size_t index) {
      return plan_.architecture.activations[index].columns.size % kMxBlock == 0;
    });
    num_units_ = by_blocks_ ? group.num_channels / kMxBlock : 1;
  }

  // The errors of the unit that a block of an activation's columns belongs to, by candidate.
  std::span<double> errors_of_block(const ColumnMap& columns, std::size_t block) {
    const std::size_t channel = columns.channel_of(columns.start + block * kMxBlock);
    const std::size_t unit = by_blocks_ ? channel / kMxBlock : 0;
    return std::span(errors_).subspan(unit * candidates_.size(), candidates_.size());
  }

  void add_weight_errors(const SearchTask& task, const RowSample& sample) {
    const MxSpec spec =
        mx_spec_of(searched_scheme(plan_.choices[task.tensor].scheme.value()), plan_.recipe);
    const ModelTensor& tensor = plan_.architecture.tensors[task.tensor];
    const Activation& activation = plan_.architecture.activations[task.activation];
    const ColumnMap& columns = activation.columns;
    const std::uint64_t cols = columns.num_columns();
    const std::vector<float> expanded = spread_candidates(columns, candidates_);
    const std::span<const float> importance = column_importance(activation);
    block_sums_.assign(cols / kMxBlock * candidates_.size(), 0.0);
    const std::uint64_t most = rows_of_pass(context_, tensor.in_features(), kMxCurveRows);
    for (std::uint64_t first = 0; first < sample.rows.size(); first += most) {
      const std::uint64_t count = std::min(most, sample.rows.size() - first);
      mx_error_curve(
          context_,
          spec,
          rows_.read(reader_, tensor, std::span(sample.rows).subspan(first, count), columns),
          importance,
          {expanded.data(), candidates_.size(), cols},
          block_sums_,
          std::span(sample.weights).subspan(first, count));
    }
    for (std::size_t block = 0; block < cols / kMxBlock; ++block) {
      const std::span<double> errors = errors_of_block(columns, block);
      for (std::size_t i = 0; i < errors.size(); ++i) {
        errors[i] += block_sums_[block * errors.size() + i];
      }
    }
  }

  void add_activation_errors(std::size_t index) {
    const ActivationErrors found = activation_errors(context_,
                                                     plan_,
                                                     statistics_,
                                                     counted_,
                                                     index,
                                                     magnitudes_of(magnitudes_, index).squares,
                                                     candidates_);
    const ColumnMap& columns = plan_.architecture.activations[index].columns;
    for (std::size_t i = 0; i < found.by_candidate.size(); ++i) {
      for (std::size_t block = 0; block < found.by_candidate[i].size(); ++block) {
        errors_of_block(columns, block)[i] += found.tokens * found.by_candidate[i][block];
      }
    }
  }

  // The first candidate is neutral; it stays where no error is finite.
  void choose(const FoldGroup& group, std::span<double> result) {
    std::ranges::fill(result, 0.0);
    for (std::size_t unit = 0; unit < num_units_; ++unit) {
      const auto errors = std::span(errors_).subspan(unit * candidates_.size(), candidates_.size());
      std::size_t best = 0;
      for (std::size_t i = 1; i < errors.size(); ++i) {
        if (errors[i] < errors[best]) {
          best = i;
        }
      }
      result[0] += errors[0];
      result[1] += errors[best];
      const std::size_t first = by_blocks_ ? unit * kMxBlock : 0;
      const std::size_t last = by_blocks_ ? first + kMxBlock : group.num_channels;
      for (std::size_t channel = first; channel < last; ++channel) {
        result[kNumErrors + channel] = candidates_[best][channel];
      }
    }
  }

  const Context& context_;
  const Plan& plan_;
  const Statistics& statistics_;
  bool counted_;  // counts_tokens
  const ColumnImportance& importance_;
  MagnitudeMeter meter_;
  WeightReader reader_;
  MagnitudeTable magnitudes_;       // of the group's activations
  std::vector<RowSample> samples_;  // of each of its tasks
  std::vector<float> alike_;
  std::vector<std::vector<float>> candidates_;  // s by channel
  bool by_blocks_ = true;
  std::size_t num_units_ = 0;
  std::vector<double> errors_;  // [units, candidates]
  FiniteRows rows_;
  std::vector<double> block_sums_;  // [blocks of columns, candidates], of the reader
};

GroupScales to_scales(std::span<const double> result) {
  GroupScales scales;
  const double by_blocks = std::numeric_limits<double>::quiet_NaN();
  scales.alphas = {0, by_blocks};
  scales.betas = {0, by_blocks};
  scales.alpha = by_blocks;
  scales.beta = by_blocks;
  scales.errors = {result[0], result[1]};
  for (const double s : result.subspan(kNumErrors)) {
    scales.s.push_back(static_cast<float>(s));
  }
  return scales;
}

}  // namespace

ScaleTable search_blocks(const Team& team,
                         const Context& context,
                         const Checkpoint& checkpoint,
                         const Plan& plan,
                         const Statistics& statistics,
                         const ColumnImportance& importance,
                         JobJournal& journal) {
  const std::vector<GroupTask> tasks = group_tasks(plan);
  std::vector<std::size_t> offsets{0};
  for (const GroupTask& task : tasks) {
    offsets.push_back(offsets.back() + kNumErrors +
                      plan.architecture.fold_groups[task.group].num_channels);
  }
  std::vector<double> results(offsets.back(), 0.0);
  const auto part = [&](std::size_t task) {
    return std::span(results).subspan(offsets[task], offsets[task + 1] - offsets[task]);
  };
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    const auto earlier = journal.find(JournalPhase::kSearch, tasks[task].first, part(task).size());
    if (team.is_leader() && earlier) {  // one rank brings in what earlier runs found
      std::ranges::copy(*earlier, part(task).begin());
    }
  }
  const bool counted = counts_tokens(statistics);
  std::vector<GroupSearcher> workers;
  for (int worker = 0; worker < team.num_threads; ++worker) {
    workers.emplace_back(context, checkpoint, plan, statistics, counted, importance);
  }
  run_tasks(
      team,
      {"search",
       own_tasks(
           team,
           costs_of(tasks),
           [&](std::size_t task) { return journal.has(JournalPhase::kSearch, tasks[task].first); }),
       [&](std::size_t task) { return 2 * tasks[task].cost; }},
      [&](std::size_t task, int worker) {
        workers[static_cast<std::size_t>(worker)].search(tasks[task], part(task));
        journal.add(JournalPhase::kSearch, tasks[task].first, part(task));
        for (std::size_t other = tasks[task].first + 1; other < tasks[task].last; ++other) {
          journal.add(JournalPhase::kSearch, other, {});  // it counts as finished too
        }
      },
      [&] { journal.flush(); });
  team.world.sum_disjoint(results);
  ScaleTable table = neutral_scales(plan);
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    table[plan.architecture.fold_groups[tasks[task].group].name] = to_scales(part(task));
  }
  return table;
}

}  // namespace quantmill
