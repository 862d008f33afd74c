#include "pipeline/chunk_searcher.h"

#include <algorithm>
#include <numbers>

#include "kernels/mx.h"
#include "pipeline/activation_errors.h"
#include "pipeline/device_errors.h"
#include "pipeline/scheme_codec.h"
#include "quant/awq.h"

namespace quantmill {
namespace {

RowSample sample_of(std::span<const double> row_weights) {
  RowSample sample;
  for (std::size_t row = 0; row < row_weights.size(); ++row) {
    if (row_weights[row] != 0) {
      sample.rows.push_back(row);
      sample.weights.push_back(row_weights[row]);
    }
  }
  return sample;
}

}  // namespace

void add_to_table(const Plan& plan,
                  const SearchChunk& chunk,
                  std::span<const double> magnitudes,
                  MagnitudeTable& table) {
  for (const std::size_t activation : activations_of(plan, chunk)) {
    const std::size_t columns = plan.architecture.activations[activation].columns.num_columns();
    ColumnMagnitudes& sums = table[activation];
    for (std::vector<double>* const values : {&sums.squares, &sums.shares}) {
      values->resize(columns);
      for (std::size_t column = 0; column < columns; ++column) {
        (*values)[column] += magnitudes[column];
      }
      magnitudes = magnitudes.subspan(columns);
    }
  }
}

ChunkSearcher::ChunkSearcher(const Context& context,
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

void ChunkSearcher::measure(const SearchChunk& chunk,
                            std::span<double> magnitudes,
                            std::span<double> row_weights) {
  for (std::size_t task = chunk.first; task < chunk.last; ++task) {
    const SearchTask& search = plan_.search_tasks[task];
    const Activation& activation = plan_.architecture.activations[search.activation];
    const std::size_t columns = activation.columns.num_columns();
    const RowSample sample =
        sample_rows(meter_.add(plan_.architecture.tensors[search.tensor],
                               activation.columns,
                               column_importance(activation),
                               {magnitudes.first(columns), magnitudes.subspan(columns, columns)}),
                    kBlockGridRows);
    for (std::size_t i = 0; i < sample.rows.size(); ++i) {
      row_weights[sample.rows[i]] = sample.weights[i];
    }
    row_weights = row_weights.subspan(search.end);
    const bool ends_activation =
        task + 1 == chunk.last || plan_.search_tasks[task + 1].activation != search.activation;
    if (ends_activation) {
      magnitudes = magnitudes.subspan(2 * columns);
    }
  }
}

void ChunkSearcher::search(const SearchChunk& chunk,
                           const MagnitudeTable& table,
                           std::span<const double> row_weights,
                           std::span<double> errors) {
  make_candidates(chunk.group, table);
  add_errors(chunk, table, row_weights, errors);
}

void ChunkSearcher::choose(std::size_t group,
                           const MagnitudeTable& table,
                           std::span<const double> errors,
                           std::span<double> result) {
  make_candidates(group, table);
  pick(group, errors, result);
}

void ChunkSearcher::search_whole(const SearchChunk& chunk, std::span<double> result) {
  const ChunkSizes sizes = sizes_of(plan_, chunk);
  std::vector<double> magnitudes(sizes.magnitudes);
  std::vector<double> row_weights(sizes.row_weights);
  measure(chunk, magnitudes, row_weights);
  MagnitudeTable table;
  add_to_table(plan_, chunk, magnitudes, table);
  make_candidates(chunk.group, table);
  std::vector<double> errors(sizes.errors);
  add_errors(chunk, table, row_weights, errors);
  pick(chunk.group, errors, result);
}

// One weight for each column of an activation's readers.
std::span<const float> ChunkSearcher::column_importance(const Activation& activation) {
  const auto known = importance_.table().find(activation.name);
  if (known != importance_.table().end()) {
    return known->second;
  }
  alike_.assign(activation.columns.num_columns(), 1.0F);
  return alike_;
}

void ChunkSearcher::make_candidates(std::size_t group, const MagnitudeTable& table) {
  const FoldGroup& fold_group = plan_.architecture.fold_groups[group];
  const std::vector<double> absmean =
      pooled_absmean(plan_.architecture, fold_group, statistics_, plan_.recipe.min_tokens);
  const bool by_shares = divides_by_shares(plan_.recipe);
  const std::vector<double> weights =
      by_shares ? pooled_weight_shares(plan_.architecture, fold_group, table)
                : pooled_weight_rms(plan_.architecture, fold_group, table);
  const bool pow2 = plan_.recipe.fold_scales == FoldScales::kPow2;
  candidates_.clear();
  for (const ScaleExponents exponents : tried_exponents(plan_.recipe)) {
    candidates_.push_back(channel_scales(absmean, weights, exponents, pow2));
    if (has_half_steps(plan_.recipe)) {
      candidates_.push_back(candidates_.back());
      for (float& s : candidates_.back()) {
        s *= std::numbers::sqrt2_v<float>;
      }
    }
  }
  units_ = units_of(plan_, group);
}

// The errors of the unit that a block of an activation's columns belongs to, by candidate.
std::span<double> ChunkSearcher::errors_of_block(const ColumnMap& columns,
                                                 std::size_t block,
                                                 std::span<double> errors) const {
  const std::size_t channel = columns.channel_of(columns.start + block * kMxBlock);
  const std::size_t unit = units_.by_blocks ? channel / kMxBlock : 0;
  return errors.subspan(unit * candidates_.size(), candidates_.size());
}

void ChunkSearcher::add_errors(const SearchChunk& chunk,
                               const MagnitudeTable& table,
                               std::span<const double> row_weights,
                               std::span<double> errors) {
  for (std::size_t task = chunk.first; task < chunk.last; ++task) {
    const SearchTask& search = plan_.search_tasks[task];
    with_tensor_name(plan_.architecture.tensors[search.tensor].name, [&] {
      add_weight_errors(search, sample_of(row_weights.first(search.end)), errors);
    });
    row_weights = row_weights.subspan(search.end);
  }
  if (plan_.recipe.objective == Objective::kW4A4) {
    for (const std::size_t activation : begun_activations(plan_, chunk)) {
      add_activation_errors(activation, table, errors);
    }
  }
}

void ChunkSearcher::add_weight_errors(const SearchTask& task,
                                      const RowSample& sample,
                                      std::span<double> errors) {
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
    const std::span<double> sums = errors_of_block(columns, block, errors);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += block_sums_[block * sums.size() + i];
    }
  }
}

void ChunkSearcher::add_activation_errors(std::size_t index,
                                          const MagnitudeTable& table,
                                          std::span<double> errors) {
  const ActivationErrors found = activation_errors(context_,
                                                   plan_,
                                                   statistics_,
                                                   counted_,
                                                   index,
                                                   magnitudes_of(table, index).squares,
                                                   candidates_);
  const ColumnMap& columns = plan_.architecture.activations[index].columns;
  for (std::size_t i = 0; i < found.by_candidate.size(); ++i) {
    for (std::size_t block = 0; block < found.by_candidate[i].size(); ++block) {
      errors_of_block(columns, block, errors)[i] += found.tokens * found.by_candidate[i][block];
    }
  }
}

// The first candidate is neutral; it stays where no error is finite.
void ChunkSearcher::pick(std::size_t group,
                         std::span<const double> errors,
                         std::span<double> result) const {
  std::ranges::fill(result, 0.0);
  for (std::size_t unit = 0; unit < units_.count; ++unit) {
    const auto of_unit = errors.subspan(unit * candidates_.size(), candidates_.size());
    std::size_t best = 0;
    for (std::size_t i = 1; i < of_unit.size(); ++i) {
      if (of_unit[i] < of_unit[best]) {
        best = i;
      }
    }
    result[0] += of_unit[0];
    result[1] += of_unit[best];
    const std::size_t channels = plan_.architecture.fold_groups[group].num_channels;
    const std::size_t first = units_.by_blocks ? unit * kMxBlock : 0;
    const std::size_t last = units_.by_blocks ? first + kMxBlock : channels;
    for (std::size_t channel = first; channel < last; ++channel) {
      result[kNumBlockErrors + channel] = candidates_[best][channel];
    }
  }
}

}  // namespace quantmill
