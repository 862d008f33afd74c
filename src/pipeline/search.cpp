#include "pipeline/search.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include <fmt/format.h>

#include "base/error.h"

#include "kernels/mx.h"
#include "pipeline/scheme_codec.h"
#include "pipeline/scheme_error_curve.h"
#include "pipeline/weight_reader.h"
#include "quant/awq.h"

namespace quantmill {
namespace {

constexpr float kSmallestMean = 1e-8F;                           // as awq_candidates
constexpr std::uint64_t kWorkElements = std::uint64_t{1} << 16;  // read and evaluated at a time

// The candidates of each group, made when a task first needs them.
class CandidateCache {
 public:
  CandidateCache(const Plan& plan, const Statistics& statistics)
      : plan_(plan),
        statistics_(statistics),
        made_(plan.groups.size()),
        candidates_(plan.groups.size()) {}

  // [number of alphas, channels], row-major. Thread-safe.
  const std::vector<std::vector<float>>& of(std::size_t group) {
    std::call_once(made_[group], [&] {
      const std::vector<double> absmean = pooled_absmean(plan_.architecture,
                                                         plan_.architecture.fold_groups[group],
                                                         statistics_,
                                                         plan_.recipe.min_tokens);
      candidates_[group] = awq_candidates(
          absmean, plan_.recipe.alphas, plan_.recipe.fold_scales == FoldScales::kPow2);
    });
    return candidates_[group];
  }

 private:
  const Plan& plan_;
  const Statistics& statistics_;
  std::vector<std::once_flag> made_;
  std::vector<std::vector<std::vector<float>>> candidates_;
};

// One worker: evaluates search tasks. Not thread-safe.
class TaskEvaluator {
 public:
  TaskEvaluator(const Context& context,
                const Checkpoint& checkpoint,
                const Plan& plan,
                const Statistics& statistics,
                CandidateCache& candidates)
      : context_(context),
        plan_(plan),
        statistics_(statistics),
        cache_(candidates),
        reader_(context, checkpoint, plan.architecture) {}

  void evaluate(const SearchTask& task, std::span<double> sums) {
    const ModelTensor& tensor = plan_.architecture.tensors[task.tensor];
    const Activation& activation = plan_.architecture.activations[task.activation];
    const std::uint64_t cols = activation.columns.num_columns();
    expand(activation, cache_.of(task.group));
    const Scheme scheme = searched_scheme(plan_.choices[task.tensor].scheme.value());
    const std::uint64_t together = rows_together(scheme);
    const std::uint64_t rows_read = std::max(together, kWorkElements / cols / together * together);
    std::uint64_t row = task.begin;
    while (row < task.end) {
      const std::uint64_t left = (task.end - row + task.step - 1) / task.step;
      const std::uint64_t rows = std::min(rows_read, left);
      decode_rows(tensor, row, rows, task.step);
      keep_columns(activation.columns, rows, tensor.in_features());
      add_error_curve(scheme, ConstFloatMatrix(values_.data(), rows, cols), sums);
      row += rows * task.step;
    }
  }

 private:
  // Of what is in values_, with candidates_ and importance_.
  void add_error_curve(Scheme scheme, ConstFloatMatrix values, std::span<double> sums) {
    const ConstFloatMatrix candidates(candidates_.data(), sums.size(), values.cols);
    if (is_mx(scheme)) {
      const MxSpec spec = mx_spec_of(scheme, plan_.recipe);
      mx_error_curve(context_, spec, values, importance_, candidates, sums);
      return;
    }
    curves_.try_emplace(scheme, context_, scheme, plan_.recipe)
        .first->second.add(values, importance_, candidates, sums);
  }

  // Candidates and importance per column of the activation's readers.
  void expand(const Activation& activation, const std::vector<std::vector<float>>& candidates) {
    const std::vector<double>& absmean = statistics_.at(activation.statistics).absmean;
    const ColumnMap& columns = activation.columns;
    importance_.clear();
    for (std::size_t column = columns.start; column < columns.end(); ++column) {
      importance_.push_back(std::max(static_cast<float>(absmean[column]), kSmallestMean));
    }
    candidates_.clear();
    for (const std::vector<float>& candidate : candidates) {
      for (std::size_t column = columns.start; column < columns.end(); ++column) {
        candidates_.push_back(candidate[columns.channel_of(column)]);
      }
    }
  }

  void decode_rows(const ModelTensor& tensor,
                   std::uint64_t first,
                   std::uint64_t rows,
                   std::uint64_t step) {
    const std::uint64_t cols = tensor.in_features();
    reader_.load(tensor, all_rows(tensor), first, rows, step);
    values_.resize(rows * cols);
    const auto bad = reader_.decode(0, FloatMatrix{values_.data(), rows, cols});
    if (bad) {
      throw Error(
          ErrorCode::kInput,
          fmt::format(
              "tensor {}: row {}, column {} is {}; a damaged weight can't be quantized. Fetch the "
              "checkpoint again, or leave the tensor as it is with --keep",
              tensor.name,
              first + bad->row * step,
              bad->col,
              values_[bad->row * cols + bad->col]));
    }
  }

  // Leaves in values_ [rows, cols] only the columns of one activation.
  void keep_columns(const ColumnMap& columns, std::uint64_t rows, std::uint64_t cols) {
    const std::size_t width = columns.num_columns();
    for (std::uint64_t row = 0; width < cols && row < rows; ++row) {
      std::copy_n(&values_[row * cols + columns.start], width, &values_[row * width]);
    }
  }

  const Context& context_;
  const Plan& plan_;
  const Statistics& statistics_;
  CandidateCache& cache_;
  std::vector<float> candidates_;
  std::vector<float> importance_;
  WeightReader reader_;
  std::map<Scheme, SchemeErrorCurve> curves_;
  std::vector<float> values_;
};

// This node's tasks that are still to do, largest first.
std::vector<std::size_t> own_tasks(const Team& team, const Plan& plan, const JobJournal& journal) {
  std::vector<std::uint64_t> costs;
  for (const SearchTask& task : plan.search_tasks) {
    costs.push_back(task.cost);
  }
  const std::vector<std::size_t> node_of = assign_to_nodes(costs, team.node_ranks);
  std::vector<std::size_t> tasks;
  for (std::size_t task = 0; task < costs.size(); ++task) {
    if (node_of[task] == team.node_index && !journal.find(JournalPhase::kSearch, task)) {
      tasks.push_back(task);
    }
  }
  std::ranges::stable_sort(tasks,
                           [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  return tasks;
}

// The chosen candidate: least finite error, the earliest on a tie; nothing if no error is finite.
std::optional<std::size_t> least(std::span<const double> errors) {
  std::optional<std::size_t> best;
  for (std::size_t index = 0; index < errors.size(); ++index) {
    if (std::isfinite(errors[index]) && (!best || errors[index] < errors[*best])) {
      best = index;
    }
  }
  return best;
}

// Rank 0's s on every rank: the C library of another machine could differ in the last bit.
void broadcast_scales(const Team& team, std::vector<float>& s) {
  std::vector<std::byte> bytes(s.size() * sizeof(float));
  std::memcpy(bytes.data(), s.data(), bytes.size());
  bytes = team.world.broadcast(std::move(bytes), 0);
  std::memcpy(s.data(), bytes.data(), bytes.size());
}

}  // namespace

ScaleTable neutral_scales(const Plan& plan) {
  ScaleTable table;
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    const FoldGroup& fold_group = plan.architecture.fold_groups[group];
    GroupScales& scales = table[fold_group.name];
    scales.s.assign(fold_group.num_channels, 1.0F);
    scales.reason = plan.groups[group].reason;
  }
  return table;
}

ScaleTable search_scales(const Team& team,
                         const Context& context,
                         const Checkpoint& checkpoint,
                         const Plan& plan,
                         const Statistics& statistics,
                         JobJournal& journal) {
  const std::size_t num_alphas = plan.recipe.alphas.size();
  std::vector<double> sums(plan.search_tasks.size() * num_alphas, 0.0);
  CandidateCache candidates(plan, statistics);
  std::vector<TaskEvaluator> workers;
  for (int worker = 0; worker < team.num_threads; ++worker) {
    workers.emplace_back(context, checkpoint, plan, statistics, candidates);
  }
  if (team.is_leader()) {  // one rank brings in what earlier runs found
    for (std::size_t task = 0; task < plan.search_tasks.size(); ++task) {
      if (const auto earlier = journal.find(JournalPhase::kSearch, task)) {
        check_invariant(earlier->size() == num_alphas, "a journal of another search");
        std::ranges::copy(*earlier, sums.begin() + static_cast<std::ptrdiff_t>(task * num_alphas));
      }
    }
  }
  run_tasks(
      team,
      {"search",
       own_tasks(team, plan, journal),
       [&](std::size_t task) {
         const SearchTask& search = plan.search_tasks[task];
         const ModelTensor& tensor = plan.architecture.tensors[search.tensor];
         return search.cost / tensor.in_features() *
                WeightReader::loaded_row_bytes(plan.architecture.weights[tensor.stored],
                                               tensor.in_features());
       }},
      [&](std::size_t task, int worker) {
        const auto own_sums = std::span(sums).subspan(task * num_alphas, num_alphas);
        workers[static_cast<std::size_t>(worker)].evaluate(plan.search_tasks[task], own_sums);
        journal.add(JournalPhase::kSearch, task, own_sums);
      },
      [&] { journal.flush(); });
  team.world.sum_disjoint(sums);
  ScaleTable table = neutral_scales(plan);
  for (std::size_t task = 0; task < plan.search_tasks.size(); ++task) {
    GroupScales& scales = table[plan.architecture.fold_groups[plan.search_tasks[task].group].name];
    scales.errors.resize(num_alphas, 0.0);
    for (std::size_t alpha = 0; alpha < num_alphas; ++alpha) {
      scales.errors[alpha] += sums[task * num_alphas + alpha];
    }
  }
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    if (!plan.groups[group].searched) {
      continue;
    }
    GroupScales& scales = table[plan.architecture.fold_groups[group].name];
    scales.alphas = plan.recipe.alphas;
    const auto best = least(scales.errors);
    if (!best) {
      scales.reason = "the error of every candidate is beyond the range of double";
      continue;
    }
    scales.alpha = scales.alphas[*best];
    scales.s = candidates.of(group)[*best];
    broadcast_scales(team, scales.s);
  }
  return table;
}

}  // namespace quantmill
