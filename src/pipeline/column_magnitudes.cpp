#include "pipeline/column_magnitudes.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "base/parallel.h"
#include "pipeline/device_errors.h"

namespace quantmill {
namespace {

// Rows are asked for so many rounds of reading before they are read: some MB.
constexpr std::uint64_t kRoundsAhead = 32;

// An activation and its quantized readers.
struct MeasureTask {
  std::size_t activation = 0;
  std::vector<std::size_t> readers;
  std::uint64_t cost = 0;  // elements
};

std::vector<MeasureTask> measure_tasks(const Plan& plan) {
  std::vector<MeasureTask> tasks;
  for (const SearchTask& search : plan.search_tasks) {  // by group, reader, row
    if (tasks.empty() || tasks.back().activation != search.activation) {
      tasks.push_back({search.activation, {}, 0});
    }
    MeasureTask& task = tasks.back();
    if (task.readers.empty() || task.readers.back() != search.tensor) {
      const ModelTensor& tensor = plan.architecture.tensors[search.tensor];
      task.readers.push_back(search.tensor);
      task.cost += tensor.out_features() * tensor.in_features();
    }
  }
  return tasks;
}

// The sum over the columns of each channel.
std::vector<double> pooled(const ResolvedArchitecture& architecture,
                           const FoldGroup& group,
                           const MagnitudeTable& magnitudes,
                           std::vector<double> ColumnMagnitudes::*which) {
  std::vector<double> sums(group.num_channels, 0.0);
  for (const std::size_t index : group.activations) {
    const ColumnMap& columns = architecture.activations[index].columns;
    const std::vector<double>& values = magnitudes_of(magnitudes, index).*which;
    for (std::size_t c = 0; c < values.size(); ++c) {
      sums[columns.channel_of(columns.start + c)] += values[c];
    }
  }
  return sums;
}

}  // namespace

const ColumnMagnitudes& magnitudes_of(const MagnitudeTable& table, std::size_t activation) {
  static const ColumnMagnitudes none;
  const auto found = table.find(activation);
  return found == table.end() ? none : found->second;
}

MagnitudeMeter::MagnitudeMeter(const Context& context,
                               const Checkpoint& checkpoint,
                               const Plan& plan)
    : context_(context), reader_(context, checkpoint, plan.architecture), rows_(context) {}

std::vector<double> MagnitudeMeter::add(const ModelTensor& tensor,
                                        const ColumnMap& columns,
                                        std::span<const float> weights,
                                        const ColumnSums& sums) {
  return with_tensor_name(tensor.name, [&] { return add_rows(tensor, columns, weights, sums); });
}

std::vector<double> MagnitudeMeter::add_rows(const ModelTensor& tensor,
                                             const ColumnMap& columns,
                                             std::span<const float> weights,
                                             const ColumnSums& sums) {
  const std::uint64_t total = tensor.out_features();
  const std::uint64_t most = rows_of_pass(context_, tensor.in_features(), 1);
  std::vector<double> row_squares(total);
  std::vector<std::uint64_t> rows;
  for (std::uint64_t first = 0; first < total; first += most) {
    const std::uint64_t ahead = first + kRoundsAhead * most;
    if (first % (kRoundsAhead * most) == 0 && ahead < total) {
      reader_.expect(tensor, all_rows(tensor), ahead, std::min(kRoundsAhead * most, total - ahead));
    }
    rows.resize(std::min(most, total - first));
    std::iota(rows.begin(), rows.end(), first);
    add_magnitudes(context_,
                   rows_.read(reader_, tensor, rows, columns),
                   weights,
                   sums,
                   std::span(row_squares).subspan(first, rows.size()));
  }
  return row_squares;
}

MagnitudeTable measure_column_magnitudes(const Team& team,
                                         const Context& context,
                                         const Checkpoint& checkpoint,
                                         const Plan& plan) {
  const std::vector<MeasureTask> tasks = measure_tasks(plan);
  std::vector<std::size_t> offsets{0};  // of squares; the shares follow them
  const auto num_columns = [&](std::size_t task) {
    return plan.architecture.activations[tasks[task].activation].columns.num_columns();
  };
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    offsets.push_back(offsets.back() + 2 * num_columns(task));
  }
  std::vector<double> all(offsets.back(), 0.0);
  const auto squares_of = [&](std::size_t task) {
    return std::span(all).subspan(offsets[task], num_columns(task));
  };
  const auto shares_of = [&](std::size_t task) {
    return std::span(all).subspan(offsets[task] + num_columns(task), num_columns(task));
  };
  auto workers = make_workers<MagnitudeMeter>(team.num_threads, context, checkpoint, plan);
  run_tasks(
      team,
      {"measure",
       own_tasks(team, costs_of(tasks), [](std::size_t /*task*/) { return false; }),
       [&](std::size_t task) { return 2 * tasks[task].cost; }},
      [&](std::size_t task, int worker) {
        const ColumnMap& columns = plan.architecture.activations[tasks[task].activation].columns;
        const std::vector<float> alike(columns.num_columns(), 1.0F);
        for (const std::size_t reader : tasks[task].readers) {
          (void)workers[static_cast<std::size_t>(worker)].add(plan.architecture.tensors[reader],
                                                              columns,
                                                              alike,
                                                              {squares_of(task), shares_of(task)});
        }
      },
      [] {});
  team.world.sum_disjoint(all);
  MagnitudeTable magnitudes;
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    ColumnMagnitudes& found = magnitudes[tasks[task].activation];
    std::ranges::copy(squares_of(task), std::back_inserter(found.squares));
    std::ranges::copy(shares_of(task), std::back_inserter(found.shares));
  }
  return magnitudes;
}

std::vector<float> spread_channels(const ColumnMap& columns, std::span<const float> channels) {
  std::vector<float> values;
  for (std::size_t column = columns.start; column < columns.end(); ++column) {
    values.push_back(channels[columns.channel_of(column)]);
  }
  return values;
}

std::vector<float> spread_candidates(const ColumnMap& columns,
                                     const std::vector<std::vector<float>>& candidates) {
  std::vector<float> all;
  for (const std::vector<float>& candidate : candidates) {
    const std::vector<float> spread = spread_channels(columns, candidate);
    all.insert(all.end(), spread.begin(), spread.end());
  }
  return all;
}

std::vector<double> pooled_weight_rms(const ResolvedArchitecture& architecture,
                                      const FoldGroup& group,
                                      const MagnitudeTable& magnitudes) {
  std::vector<double> rms = pooled(architecture, group, magnitudes, &ColumnMagnitudes::squares);
  for (double& value : rms) {
    value = std::sqrt(value);  // the number of rows is the same for all channels
  }
  return rms;
}

std::vector<double> pooled_weight_shares(const ResolvedArchitecture& architecture,
                                         const FoldGroup& group,
                                         const MagnitudeTable& magnitudes) {
  return pooled(architecture, group, magnitudes, &ColumnMagnitudes::shares);
}

}  // namespace quantmill
