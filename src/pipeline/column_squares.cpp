#include "pipeline/column_squares.h"

#include <algorithm>
#include <cmath>

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

  // Adds to `sums`, one per column of the activation. NaN where a weight is not finite, which the
  // search refuses.
  void add(const MeasureTask& task, std::span<double> sums) {
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
          const float* const first = values_.data() + row * cols + columns.start;
          for (std::size_t c = 0; c < sums.size(); ++c) {
            const double value = first[c];
            sums[c] += static_cast<double>(step) * value * value;
          }
        }
      }
    }
  }

 private:
  const Plan& plan_;
  WeightReader reader_;
  std::vector<float> values_;
};

}  // namespace

std::vector<std::vector<double>> measure_column_squares(const Team& team,
                                                        const Context& context,
                                                        const Checkpoint& checkpoint,
                                                        const Plan& plan) {
  const std::vector<MeasureTask> tasks = measure_tasks(plan);
  std::vector<std::size_t> offsets{0};
  for (const MeasureTask& task : tasks) {
    offsets.push_back(offsets.back() +
                      plan.architecture.activations[task.activation].columns.num_columns());
  }
  std::vector<double> all(offsets.back(), 0.0);
  const auto part = [&](std::size_t task) {
    return std::span(all).subspan(offsets[task], offsets[task + 1] - offsets[task]);
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
        workers[static_cast<std::size_t>(worker)].add(tasks[task], part(task));
      },
      [] {});
  team.world.sum_disjoint(all);
  std::vector<std::vector<double>> squares(plan.architecture.activations.size());
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    const std::span<const double> sums = part(task);
    squares[tasks[task].activation].assign(sums.begin(), sums.end());
  }
  return squares;
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
                                      const std::vector<std::vector<double>>& column_squares) {
  std::vector<double> rms(group.num_channels, 0.0);
  for (const std::size_t index : group.activations) {
    const ColumnMap& columns = architecture.activations[index].columns;
    for (std::size_t c = 0; c < column_squares[index].size(); ++c) {
      rms[columns.channel_of(columns.start + c)] += column_squares[index][c];
    }
  }
  for (double& value : rms) {
    value = std::sqrt(value);  // the number of rows is the same for all channels
  }
  return rms;
}

}  // namespace quantmill
