#include "pipeline/pilot.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/parallel.h"
#include "pipeline/measure.h"
#include "pipeline/pilot_samples.h"
#include "pipeline/produce.h"
#include "pipeline/run_record.h"
#include "pipeline/search.h"
#include "pipeline/search_chunks.h"

namespace quantmill {
namespace {

// How a phase's share of the time is spent; the rest is for what is not sampled.
constexpr double kSearchShare = 0.6;
constexpr double kWriteShare = 0.25;
constexpr std::uint64_t kFileBytes = std::uint64_t{256} << 20;
using Indices = std::vector<std::size_t>;

constexpr float kPilotScale = 1.25F;

// Puts a plan's search back when it ends.
class BorrowedSearch {
 public:
  explicit BorrowedSearch(Plan& plan)
      : plan_(plan), tasks_(plan.search_tasks), groups_(plan.groups) {}

  ~BorrowedSearch() {
    plan_.search_tasks = std::move(tasks_);
    plan_.groups = std::move(groups_);
  }

  BorrowedSearch(const BorrowedSearch&) = delete;
  BorrowedSearch& operator=(const BorrowedSearch&) = delete;

  // Leaves these of its tasks, and the groups that they are of.
  void choose(std::span<const std::size_t> tasks) {
    plan_.search_tasks.clear();
    plan_.groups = groups_;
    for (GroupPlan& group : plan_.groups) {
      group.searched = false;
    }
    for (const std::size_t task : tasks) {
      plan_.search_tasks.push_back(tasks_[task]);
      plan_.groups[tasks_[task].group].searched = true;
    }
  }

  [[nodiscard]] const std::vector<SearchTask>& tasks() const { return tasks_; }

 private:
  Plan& plan_;
  std::vector<SearchTask> tasks_;
  std::vector<GroupPlan> groups_;
};

// What decides how long a search task takes, beside its elements.
std::string kind_of(const Plan& plan, const SearchTask& task) {
  const ModelTensor& tensor = plan.architecture.tensors[task.tensor];
  return fmt::format("{} {} {} {}",
                     scheme_name(plan.choices[task.tensor].scheme.value()),
                     source_type_name(plan.architecture.weights[tensor.stored]),
                     tensor.in_features(),
                     tensor.transposed);
}

std::string kind_of(const Plan& plan, const WriteTask& task) {
  const TensorWork& work = plan.tensors[task.tensor];
  const ModelTensor& tensor = plan.architecture.tensors[work.tensor];
  return fmt::format("{} {} {} {} {} {} {}",
                     static_cast<int>(work.action),
                     work.stored_name(),
                     source_type_name(plan.architecture.weights[tensor.stored]),
                     work.copies_codes,
                     work.targets.empty(),
                     tensor.transposed,
                     plan.folds[work.tensor].empty());
}

// The search tasks that a worker takes at a time.
std::vector<Indices> search_units(const Plan& plan) {
  std::vector<Indices> units;
  if (plan.recipe.scaling == Scaling::kBlockGrid) {
    for (const SearchChunk& chunk : cut_into_chunks(plan)) {
      units.emplace_back(chunk.last - chunk.first);
      std::iota(units.back().begin(), units.back().end(), chunk.first);
    }
    return units;
  }
  for (std::size_t task = 0; task < plan.search_tasks.size(); ++task) {
    units.push_back({task});
  }
  return units;
}

void time_search(const Context& context,
                 const Checkpoint& checkpoint,
                 Plan& plan,
                 const Statistics& statistics,
                 const PilotRequest& request,
                 Pilot& pilot) {
  const std::vector<Indices> units = search_units(plan);
  pilot.search.seconds.assign(units.size(), 0.0);
  if (units.empty()) {
    return;
  }
  const ColumnImportance importance(
      plan.architecture, make_importance(plan.architecture, statistics, plan.recipe.min_tokens));
  const Team solo = make_team(request.workers, 0);
  BorrowedSearch search(plan);
  std::vector<double> costs;
  TaskKinds classes;
  std::map<std::string, std::size_t> groups;  // of each class
  std::map<std::string, std::size_t> last_group;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    std::string kind;
    costs.push_back(0);
    for (const std::size_t task : units[unit]) {
      kind += kind_of(plan, search.tasks()[task]) + "\n";
      costs.back() += static_cast<double>(search.tasks()[task].cost);
    }
    TaskKind& same = classes[kind];
    const std::size_t group = search.tasks()[units[unit].front()].group;
    if (same.tasks.empty() || last_group[kind] != group) {
      ++groups[kind];
      last_group[kind] = group;
    }
    same.tasks.push_back(unit);
    same.cost += costs.back();
  }
  const bool by_chunks = plan.recipe.scaling == Scaling::kBlockGrid;
  const auto beside =
      Sampler(request.workers, kSearchShare * request.seconds)
          .time(
              classes,
              [&](std::size_t unit) { return costs[unit]; },
              by_chunks,
              [&](std::span<const std::size_t> chosen) {
                Indices tasks;
                for (const std::size_t unit : chosen) {
                  tasks.insert(tasks.end(), units[unit].begin(), units[unit].end());
                }
                search.choose(tasks);
                JobJournal none;
                (void)search_scales(solo, context, checkpoint, plan, statistics, importance, none);
              },
              pilot.search);
  for (const auto& [kind, seconds] : beside) {
    pilot.search_shared_seconds += seconds * static_cast<double>(groups[kind]);
  }
}

// Scales that cost what chosen ones do.
ScaleTable pilot_scales(const Plan& plan) {
  ScaleTable scales = neutral_scales(plan);
  for (auto& [name, group] : scales) {
    if (group.reason.empty()) {
      std::ranges::fill(group.s, kPilotScale);
    }
  }
  return scales;
}

// Makes one factor of each width, and tells what all of them take.
double factor_seconds(const Plan& plan,
                      const std::vector<ActivationFold>& folds,
                      FeedbackFactors* feedback) {
  if (feedback == nullptr) {
    return 0;
  }
  std::map<std::uint64_t, std::map<Indices, std::size_t>> works;  // by width and key
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    if (feedback->takes(plan.tensors[index])) {
      works[plan.tensors[index].cols].emplace(feedback->key(plan.tensors[index]), index);
    }
  }
  double seconds = 0;
  for (const auto& [width, keys] : works) {
    stop_if_interrupted();
    const TensorWork& work = plan.tensors[keys.begin()->second];
    seconds +=
        static_cast<double>(keys.size()) * seconds_of([&] { (void)feedback->of(work, folds); });
  }
  return seconds;
}

void time_writing(const Context& context,
                  const Checkpoint& checkpoint,
                  const Plan& plan,
                  const Statistics& statistics,
                  FeedbackFactors* feedback,
                  const PilotRequest& request,
                  Pilot& pilot) {
  const ScaleTable scales = pilot_scales(plan);
  const std::vector<ActivationFold> folds = make_fold_table(context, checkpoint, plan, scales);
  const ColumnImportance importance(
      plan.architecture, make_importance(plan.architecture, statistics, plan.recipe.min_tokens));
  pilot.factor_seconds = factor_seconds(plan, folds, feedback);
  const TensorRanges ranges{std::vector<float>(plan.tensors.size(), 1.0F),
                            std::vector<float>(plan.tensors.size(), 1.0F),
                            {}};
  auto workers = make_workers<RowProducer>(request.workers,
                                           context,
                                           checkpoint,
                                           plan,
                                           folds,
                                           ranges,
                                           importance,
                                           feedback,
                                           request.buffer_bytes);
  TaskKinds measured;
  TaskKinds written;
  const auto cost = [&](std::size_t task) {
    return static_cast<double>(std::max<std::uint64_t>(1, plan.write_tasks[task].cost));
  };
  for (std::size_t task = 0; task < plan.write_tasks.size(); ++task) {
    const std::string kind = kind_of(plan, plan.write_tasks[task]);
    std::vector<TaskKinds*> phases{&written};
    if (is_measured(plan.tensors[plan.write_tasks[task].tensor])) {
      phases.push_back(&measured);
    }
    for (TaskKinds* classes : phases) {
      TaskKind& same = (*classes)[kind];
      same.tasks.push_back(task);
      same.cost += cost(task);
    }
  }
  pilot.measure.seconds.assign(plan.write_tasks.size(), 0.0);
  pilot.write.seconds.assign(plan.write_tasks.size(), 0.0);
  PilotFile file(request.folder,
                 std::clamp<std::uint64_t>(plan.output_bytes, std::uint64_t{1} << 20, kFileBytes));
  const Emit emit = [&](std::size_t, std::uint64_t, std::span<const std::byte> bytes) {
    file.write(bytes);
  };
  const auto on_all = [&](const std::function<void(const WriteTask&, RowProducer&)>& run) {
    return [&, run](std::span<const std::size_t> tasks) {
      run_indexed(request.workers, tasks.size(), [&](std::size_t index, int worker) {
        const WorkTimer timer(Work::kEncode);
        run(plan.write_tasks[tasks[index]], workers[static_cast<std::size_t>(worker)]);
      });
    };
  };
  const Sampler sampler(request.workers, kWriteShare * request.seconds);
  (void)sampler.time(
      measured,
      cost,
      true,
      on_all([](const WriteTask& task, RowProducer& worker) { (void)worker.measure(task); }),
      pilot.measure);
  (void)sampler.time(written,
                     cost,
                     true,
                     on_all([&](const WriteTask& task, RowProducer& worker) {
                       WorkErrors ignored;
                       worker.produce(task, emit, ignored);
                     }),
                     pilot.write);
  std::tie(pilot.sync_rate, pilot.hash_rate) = file.finish();
}

}  // namespace

Pilot run_pilot(const Context& context,
                const Checkpoint& checkpoint,
                Plan& plan,
                const Statistics& statistics,
                FeedbackFactors* feedback,
                const PilotRequest& request) {
  Pilot pilot;
  pilot.workers = request.workers;
  const WorkTimes before = work_times();
  pilot.seconds = seconds_of([&] {
    time_search(context, checkpoint, plan, statistics, request, pilot);
    time_writing(context, checkpoint, plan, statistics, feedback, request, pilot);
  });
  const WorkTimes after = work_times();
  const auto read = static_cast<std::size_t>(Work::kRead);
  pilot.read_rate =
      static_cast<double>(after.bytes_read - before.bytes_read) /
      std::max(1e-9, static_cast<double>(after.nanoseconds[read] - before.nanoseconds[read]) / 1e9);
  pilot.peak_memory_bytes = peak_memory_bytes();
  return pilot;
}

}  // namespace quantmill
