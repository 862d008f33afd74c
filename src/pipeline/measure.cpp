#include "pipeline/measure.h"

#include <algorithm>

#include "base/error.h"
#include "base/parallel.h"
#include "pipeline/produce.h"

namespace quantmill {
namespace {

std::vector<std::size_t> measured_tasks(const Plan& plan, std::span<const float> carried) {
  std::vector<std::size_t> tasks;
  for (std::size_t task = 0; task < plan.write_tasks.size(); ++task) {
    const std::size_t tensor = plan.write_tasks[task].tensor;
    if (is_measured(plan.tensors[tensor]) && !(carried[tensor] > 0)) {
      tasks.push_back(task);
    }
  }
  return tasks;
}

// This node's share of them, without those that an earlier run finished.
std::vector<std::size_t> own_measured(const Team& team,
                                      const Plan& plan,
                                      const std::vector<std::size_t>& measured,
                                      const JobJournal& journal) {
  std::vector<std::uint64_t> costs;
  costs.reserve(measured.size());
  for (const std::size_t task : measured) {
    costs.push_back(plan.write_tasks[task].cost);
  }
  std::vector<std::size_t> tasks = own_tasks(team, costs, [&](std::size_t index) {
    return journal.has(JournalPhase::kMeasure, measured[index]);
  });
  for (std::size_t& task : tasks) {
    task = measured[task];
  }
  return tasks;
}

// From one maximum per write task.
std::vector<float> shared_maxima(const Plan& plan, const std::vector<double>& of_task) {
  std::vector<float> of_set(plan.tensors.size(), 0.0F);
  for (std::size_t task = 0; task < of_task.size(); ++task) {
    const TensorWork& work = plan.tensors[plan.write_tasks[task].tensor];
    float& largest = of_set[work.shares_scale_with];
    largest = std::max(largest, static_cast<float>(of_task[task]));
  }
  std::vector<float> result;
  for (const TensorWork& work : plan.tensors) {
    result.push_back(of_set[work.shares_scale_with]);
  }
  return result;
}

}  // namespace

bool is_measured(const TensorWork& work) {
  const bool is_arranged_copy = work.copies_codes && !work.targets.empty();
  return work.is_quantized() && has_tensor_scale(work.scheme) && !is_arranged_copy;
}

std::vector<float> measure_weights(const Team& team,
                                   const Context& context,
                                   const Checkpoint& checkpoint,
                                   const Plan& plan,
                                   const std::vector<ActivationFold>& folds,
                                   std::span<const float> carried,
                                   std::uint64_t buffer_bytes,
                                   JobJournal& journal) {
  const std::vector<std::size_t> measured = measured_tasks(plan, carried);
  std::vector<double> maxima(plan.write_tasks.size(), 0.0);
  if (measured.empty()) {
    return shared_maxima(plan, maxima);
  }
  const ColumnImportance importance(plan.architecture, {});  // nothing is encoded
  auto workers = make_workers<RowProducer>(team.num_threads,
                                           context,
                                           checkpoint,
                                           plan,
                                           folds,
                                           TensorRanges{},
                                           importance,
                                           nullptr,
                                           buffer_bytes);
  for (const std::size_t task : measured) {
    const auto earlier = journal.find(JournalPhase::kMeasure, task, 1);
    if (team.is_leader() && earlier) {  // one rank brings in what earlier runs found
      maxima[task] = earlier->front();
    }
  }
  run_tasks(
      team,
      {"measure",
       own_measured(team, plan, measured, journal),
       [&](std::size_t task) { return plan.write_tasks[task].cost; },
       Work::kSearch,
       [&](std::size_t task, int worker) {
         workers[static_cast<std::size_t>(worker)].expect(plan.write_tasks[task]);
       }},
      [&](std::size_t task, int worker) {
        maxima[task] = workers[static_cast<std::size_t>(worker)].measure(plan.write_tasks[task]);
        journal.add(JournalPhase::kMeasure, task, std::span(maxima).subspan(task, 1));
      },
      [&] { journal.flush(); });
  team.world.sum_disjoint(maxima);
  return shared_maxima(plan, maxima);
}

}  // namespace quantmill
