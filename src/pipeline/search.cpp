#include "pipeline/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "base/parallel.h"

#include "kernels/mx.h"
#include "pipeline/activation_errors.h"
#include "pipeline/block_search.h"
#include "pipeline/column_magnitudes.h"
#include "pipeline/device_errors.h"
#include "pipeline/finite_rows.h"
#include "pipeline/scheme_codec.h"
#include "pipeline/scheme_error_curve.h"
#include "pipeline/weight_reader.h"
#include "quant/awq.h"

namespace quantmill {
namespace {

constexpr float kSmallestMean = 1e-8F;  // as channel_scales

// What the search knows before it begins.
struct SearchInputs {
  const Plan& plan;
  const Statistics& statistics;
  const ColumnImportance& importance;
  std::vector<ScaleExponents> exponents;
  bool counted = false;       // counts_tokens
  MagnitudeTable magnitudes;  // empty where neither a candidate nor the objective needs it
};

// The candidates of each group, made when a task first needs them.
class CandidateCache {
 public:
  explicit CandidateCache(const SearchInputs& inputs)
      : inputs_(inputs), made_(inputs.plan.groups.size()), candidates_(inputs.plan.groups.size()) {}

  // [number of candidates, channels], row-major. Thread-safe.
  const std::vector<std::vector<float>>& of(std::size_t group) {
    std::call_once(made_[group], [&] {
      const Plan& plan = inputs_.plan;
      const FoldGroup& fold_group = plan.architecture.fold_groups[group];
      const std::vector<double> absmean =
          pooled_absmean(plan.architecture, fold_group, inputs_.statistics, plan.recipe.min_tokens);
      std::vector<double> weight_rms;
      if (!inputs_.magnitudes.empty()) {
        weight_rms = pooled_weight_rms(plan.architecture, fold_group, inputs_.magnitudes);
      }
      for (const ScaleExponents exponents : inputs_.exponents) {
        candidates_[group].push_back(channel_scales(
            absmean, weight_rms, exponents, plan.recipe.fold_scales == FoldScales::kPow2));
      }
    });
    return candidates_[group];
  }

 private:
  const SearchInputs& inputs_;
  std::vector<std::once_flag> made_;
  std::vector<std::vector<std::vector<float>>> candidates_;
};

// One worker: evaluates search tasks. Not thread-safe.
class TaskEvaluator {
 public:
  TaskEvaluator(const Context& context,
                const Checkpoint& checkpoint,
                const SearchInputs& inputs,
                CandidateCache& candidates)
      : context_(context),
        plan_(inputs.plan),
        inputs_(inputs),
        cache_(candidates),
        reader_(context, checkpoint, plan_.architecture),
        rows_(context) {}

  void evaluate(const SearchTask& task, std::span<double> sums) {
    with_tensor_name(plan_.architecture.tensors[task.tensor].name,
                     [&] { add_errors_of(task, sums); });
  }

 private:
  void add_errors_of(const SearchTask& task, std::span<double> sums) {
    const ModelTensor& tensor = plan_.architecture.tensors[task.tensor];
    const Activation& activation = plan_.architecture.activations[task.activation];
    const std::uint64_t cols = activation.columns.num_columns();
    expand(activation, cache_.of(task.group));
    const Scheme scheme = searched_scheme(plan_.choices[task.tensor].scheme.value());
    const bool adds_blocks = is_mx(scheme);
    const std::uint64_t most = adds_blocks
                                   ? rows_of_pass(context_, tensor.in_features(), kMxCurveRows)
                                   : rows_at_a_time(tensor.in_features(), rows_together(scheme));
    block_sums_.assign(adds_blocks ? cols / kMxBlock * sums.size() : 0, 0.0);
    std::vector<std::uint64_t> rows;
    for (std::uint64_t row = task.begin; row < task.end; row += task.step) {
      rows.push_back(row);
      if (rows.size() == most || row + task.step >= task.end) {
        add_error_curve(scheme, rows_.read(reader_, tensor, rows, activation.columns), sums);
        rows.clear();
      }
    }
    for (std::size_t i = 0; i < block_sums_.size(); ++i) {
      sums[i % sums.size()] += block_sums_[i];
    }
  }

  // With candidates_ and importance_. Blocks of MX are added to block_sums_, other schemes' errors
  // to sums.
  void add_error_curve(Scheme scheme, ConstFloatMatrix values, std::span<double> sums) {
    const ConstFloatMatrix candidates(candidates_.data(), sums.size(), values.cols);
    if (is_mx(scheme)) {
      const MxSpec spec = mx_spec_of(scheme, plan_.recipe);
      mx_error_curve(context_, spec, values, importance_, candidates, block_sums_);
      return;
    }
    curves_.try_emplace(scheme, context_, scheme, plan_.recipe)
        .first->second.add(values, importance_, candidates, sums);
  }

  // Candidates and importance per column of the activation's readers.
  void expand(const Activation& activation, const std::vector<std::vector<float>>& candidates) {
    const ImportanceTable& table = inputs_.importance.table();
    const auto known = table.find(activation.name);
    const ColumnMap& columns = activation.columns;
    if (known != table.end() && plan_.recipe.compat != Compat::kSeed) {
      importance_ = known->second;
    } else {
      const std::vector<double>& absmean = inputs_.statistics.at(activation.statistics).absmean;
      importance_.clear();
      for (std::size_t column = columns.start; column < columns.end(); ++column) {
        importance_.push_back(std::max(static_cast<float>(absmean[column]), kSmallestMean));
      }
    }
    candidates_ = spread_candidates(columns, candidates);
  }

  const Context& context_;
  const Plan& plan_;
  const SearchInputs& inputs_;
  CandidateCache& cache_;
  std::vector<float> candidates_;
  std::vector<float> importance_;
  WeightReader reader_;
  std::map<Scheme, SchemeErrorCurve> curves_;
  FiniteRows rows_;
  std::vector<double> block_sums_;  // [blocks of columns, candidates]
};

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

// Rank 0's values on every rank: the C library of another machine could differ in the last bit.
template <typename Value>
void broadcast_values(const Team& team, std::vector<Value>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(Value));
  copy_bytes(bytes.data(), values.data(), bytes.size());
  bytes = team.world.broadcast(std::move(bytes), 0);
  copy_bytes(values.data(), bytes.data(), bytes.size());
}

// Objective::kW4A4: adds what rounding a group's activations costs, for each candidate.
void add_activation_errors(const Context& context,
                           const SearchInputs& inputs,
                           const FoldGroup& group,
                           const std::vector<std::vector<float>>& candidates,
                           std::span<double> errors) {
  for (const std::size_t index : group.activations) {
    const ActivationErrors found =
        activation_errors(context,
                          inputs.plan,
                          inputs.statistics,
                          inputs.counted,
                          index,
                          magnitudes_of(inputs.magnitudes, index).squares,
                          candidates);
    for (std::size_t i = 0; i < found.by_candidate.size(); ++i) {
      const std::vector<double>& blocks = found.by_candidate[i];
      errors[i] += found.tokens * std::accumulate(blocks.begin(), blocks.end(), 0.0);
    }
  }
}

// Every group's error with each of its candidates, row-major.
std::vector<double> group_activation_errors(const Team& team,
                                            const Context& context,
                                            const SearchInputs& inputs,
                                            CandidateCache& candidates) {
  const std::size_t num_candidates = inputs.exponents.size();
  std::vector<double> errors(inputs.plan.groups.size() * num_candidates, 0.0);
  team.world.collectively([&] {
    run_indexed(team.is_leader() ? team.num_threads : 1,
                team.is_leader() ? inputs.plan.groups.size() : 0,
                [&](std::size_t group, int /*worker*/) {
                  if (inputs.plan.groups[group].searched) {
                    add_activation_errors(
                        context,
                        inputs,
                        inputs.plan.architecture.fold_groups[group],
                        candidates.of(group),
                        std::span(errors).subspan(group * num_candidates, num_candidates));
                  }
                });
  });
  broadcast_values(team, errors);
  return errors;
}

// The error of every search task with each of its group's candidates, row-major, on every rank.
std::vector<double> weight_errors(const Team& team,
                                  const Context& context,
                                  const Checkpoint& checkpoint,
                                  const SearchInputs& inputs,
                                  CandidateCache& candidates,
                                  JobJournal& journal) {
  const Plan& plan = inputs.plan;
  const std::size_t num_candidates = inputs.exponents.size();
  std::vector<double> sums(plan.search_tasks.size() * num_candidates, 0.0);
  const auto part = [&](std::size_t task) {
    return std::span(sums).subspan(task * num_candidates, num_candidates);
  };
  auto workers =
      make_workers<TaskEvaluator>(team.num_threads, context, checkpoint, inputs, candidates);
  for (std::size_t task = 0; task < plan.search_tasks.size(); ++task) {
    const auto earlier = journal.find(JournalPhase::kSearch, task, num_candidates);
    if (team.is_leader() && earlier) {  // one rank brings in what earlier runs found
      std::ranges::copy(*earlier, part(task).begin());
    }
  }
  run_tasks(
      team,
      {"search",
       own_tasks(team,
                 costs_of(plan.search_tasks),
                 [&](std::size_t task) { return journal.has(JournalPhase::kSearch, task); }),
       [&](std::size_t task) {
         const SearchTask& search = plan.search_tasks[task];
         const ModelTensor& tensor = plan.architecture.tensors[search.tensor];
         return search.cost / tensor.in_features() *
                WeightReader::loaded_row_bytes(plan.architecture.weights[tensor.stored],
                                               tensor.in_features());
       }},
      [&](std::size_t task, int worker) {
        workers[static_cast<std::size_t>(worker)].evaluate(plan.search_tasks[task], part(task));
        journal.add(JournalPhase::kSearch, task, part(task));
      },
      [&] { journal.flush(); });
  team.world.sum_disjoint(sums);
  return sums;
}

void choose_candidate(const Team& team,
                      const SearchInputs& inputs,
                      const std::vector<std::vector<float>>& candidates,
                      std::span<const double> errors,
                      GroupScales& scales) {
  for (const ScaleExponents exponents : inputs.exponents) {
    scales.alphas.push_back(exponents.alpha);
    scales.betas.push_back(exponents.beta);
  }
  scales.errors.assign(errors.begin(), errors.end());
  const auto best = least(scales.errors);
  if (!best) {
    scales.reason = "the error of every candidate is beyond the range of double";
    return;
  }
  scales.alpha = scales.alphas[*best];
  scales.beta = scales.betas[*best];
  scales.s = candidates[*best];
  broadcast_values(team, scales.s);
}

bool needs_magnitudes(const Recipe& recipe, std::span<const ScaleExponents> exponents) {
  return recipe.objective == Objective::kW4A4 ||
         std::ranges::any_of(exponents, [](ScaleExponents tried) { return tried.beta != 0; });
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
                         const ColumnImportance& importance,
                         JobJournal& journal) {
  if (plan.recipe.scaling == Scaling::kBlockGrid) {
    return search_blocks(team, context, checkpoint, plan, statistics, importance, journal);
  }
  SearchInputs inputs{
      plan, statistics, importance, tried_exponents(plan.recipe), counts_tokens(statistics), {}};
  if (needs_magnitudes(plan.recipe, inputs.exponents)) {
    inputs.magnitudes = measure_column_magnitudes(team, context, checkpoint, plan);
  }
  CandidateCache candidates(inputs);
  const std::vector<double> sums =
      weight_errors(team, context, checkpoint, inputs, candidates, journal);
  const std::size_t num_candidates = inputs.exponents.size();
  std::vector<double> errors(plan.groups.size() * num_candidates, 0.0);
  if (plan.recipe.objective == Objective::kW4A4) {
    errors = group_activation_errors(team, context, inputs, candidates);
  }
  for (std::size_t task = 0; task < plan.search_tasks.size(); ++task) {
    const std::size_t group = plan.search_tasks[task].group;
    for (std::size_t i = 0; i < num_candidates; ++i) {
      errors[group * num_candidates + i] += sums[task * num_candidates + i];
    }
  }
  ScaleTable table = neutral_scales(plan);
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    if (plan.groups[group].searched) {
      choose_candidate(team,
                       inputs,
                       candidates.of(group),
                       std::span(errors).subspan(group * num_candidates, num_candidates),
                       table[plan.architecture.fold_groups[group].name]);
    }
  }
  return table;
}

}  // namespace quantmill
