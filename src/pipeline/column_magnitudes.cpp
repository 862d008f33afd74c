#include "pipeline/column_magnitudes.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "kernels/mx.h"
#include "pipeline/weight_reader.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kSampledRows = 2048;
constexpr std::uint64_t kWorkElements = std::uint64_t{1} << 16;

// An activation and its quantized readers.
struct MeasureTask {
  std::size_t activation = 0;
  std::vector<std::size_t> readers;
  std::uint64_t cost = 0;  // elements
};

std::uint64_t row_step(const ModelTensor& tensor) {
  return std::max<std::uint64_t>(1, tensor.out_features() / kSampledRows);
}

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
      task.cost += tensor.out_features() / row_step(tensor) * tensor.in_features();
    }
  }
  return tasks;
}

// One worker. Not thread-safe.
class Measurer {
 public:
  Measurer(const Context& context, const Checkpoint& checkpoint, const Plan& plan)
      : plan_(plan), reader_(context, checkpoint, plan.architecture) {}

  // Adds to squares and shares, one of each per column of the activation. NaN where a weight is not
  // finite, which the search refuses.
  void add(const MeasureTask& task, std::span<double> squares, std::span<double> shares) {
    const ColumnMap& columns = plan_.architecture.activations[task.activation].columns;
    for (const std::size_t index : task.readers) {
      const ModelTensor& tensor = plan_.architecture.tensors[index];
      const std::uint64_t step = row_step(tensor);
      const std::uint64_t cols = tensor.in_features();
      const std::uint64_t total = (tensor.out_features() + step - 1) / step;
      const std::uint64_t held = std::max<std::uint64_t>(1, kWorkElements / cols);
      for (std::uint64_t done = 0; done < total; done += held) {
        const std::uint64_t rows = std::min(held, total - done);
        reader_.load(tensor, all_rows(tensor), done * step, rows, step);
        values_.resize(rows * cols);
        (void)reader_.decode(0, FloatMatrix{values_.data(), rows, cols});
        for (std::uint64_t row = 0; row < rows; ++row) {
          add_row(std::span(values_).subspan(row * cols + columns.start, squares.size()),
                  static_cast<double>(step),
                  squares,
                  shares);
        }
      }
    }
  }

 private:
  static void add_row(std::span<const float> row,
                      double weight,
                      std::span<double> squares,
                      std::span<double> shares) {
    for (std::size_t first = 0; first < row.size(); first += kMxBlock) {
      const std::size_t last = std::min(first + kMxBlock, row.size());
      double largest = 0;
      for (std::size_t c = first; c < last; ++c) {
        largest = std::max(largest, std::abs(double{row[c]}));
      }
      const double inverse = largest == 0 ? 0.0 : weight / largest;
      for (std::size_t c = first; c < last; ++c) {
        const double value = row[c];
        squares[c] += weight * value * value;
        shares[c] += std::abs(value) * inverse;
      }
    }
  }

  const Plan& plan_;
  WeightReader reader_;
  std::vector<float> values_;
};

// The sum over the columns of each channel.
std::vector<double> pooled(const ResolvedArchitecture& architecture,
                           const FoldGroup& group,
                           const std::vector<ColumnMagnitudes>& magnitudes,
                           std::vector<double> ColumnMagnitudes::*which) {
  std::vector<double> sums(group.num_channels, 0.0);
  for (const std::size_t index : group.activations) {
    const ColumnMap& columns = architecture.activations[index].columns;
    const std::vector<double>& values = magnitudes[index].*which;
    for (std::size_t c = 0; c < values.size(); ++c) {
      sums[columns.channel_of(columns.start + c)] += values[c];
    }
  }
  return sums;
}

}  // namespace

std::vector<ColumnMagnitudes> measure_column_magnitudes(const Team& team,
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
  std::vector<Measurer> workers;
  for (int worker = 0; worker < team.num_threads; ++worker) {
    workers.emplace_back(context, checkpoint, plan);
  }
  run_tasks(
      team,
      {"measure",
       own_tasks(team, costs_of(tasks), [](std::size_t /*task*/) { return false; }),
       [&](std::size_t task) { return 2 * tasks[task].cost; }},
      [&](std::size_t task, int worker) {
        workers[static_cast<std::size_t>(worker)].add(
            tasks[task], squares_of(task), shares_of(task));
      },
      [] {});
  team.world.sum_disjoint(all);
  std::vector<ColumnMagnitudes> magnitudes(plan.architecture.activations.size());
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

std::vector<double> pooled_weight_rms(const ResolvedArchitecture& architecture,
                                      const FoldGroup& group,
                                      const std::vector<ColumnMagnitudes>& magnitudes) {
  std::vector<double> rms = pooled(architecture, group, magnitudes, &ColumnMagnitudes::squares);
  for (double& value : rms) {
    value = std::sqrt(value);  // the number of rows is the same for all channels
  }
  return rms;
}

std::vector<double> pooled_weight_shares(const ResolvedArchitecture& architecture,
                                         const FoldGroup& group,
                                         const std::vector<ColumnMagnitudes>& magnitudes) {
  return pooled(architecture, group, magnitudes, &ColumnMagnitudes::shares);
}

}  // namespace quantmill
