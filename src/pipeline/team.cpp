#include "pipeline/team.h"

#include <sched.h>

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/byte_size.h"
#include "base/checked.h"
#include "base/interrupt.h"
#include "base/parallel.h"
#include "base/work_times.h"
#include "pipeline/heartbeat.h"

namespace quantmill {
namespace {

std::vector<std::byte> to_bytes(int value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

void throw_if_interrupted() {
  if (is_interrupted()) {
    throw Error(ErrorCode::kInterrupted, fmt::format("stopped by {}", interrupting_signal()));
  }
}

}  // namespace

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) {
    return 1;
  }
  return std::max(1, CPU_COUNT(&cores));
}

Team make_team(int num_threads, int ranks_per_node) {
  Communicator world = Communicator::world();
  Communicator node = world.split_by_node(ranks_per_node);
  Team team{std::move(world), std::move(node), 0, {}, num_threads, {}};
  // A node's ranks all know its lowest world rank.
  const auto node_worlds = team.node.gather_all(to_bytes(team.world.rank()));
  const int mine = load_little_endian<int>(node_worlds.front());
  std::vector<int> lowest;
  for (const auto& bytes : team.world.gather_all(to_bytes(mine))) {
    lowest.push_back(load_little_endian<int>(bytes));
  }
  for (int rank = 0; rank < team.world.size(); ++rank) {
    if (lowest[static_cast<std::size_t>(rank)] == rank) {
      if (rank == mine) {
        team.node_index = team.node_ranks.size();
      }
      team.node_ranks.push_back(static_cast<int>(std::ranges::count(lowest, rank)));
    }
  }
  if (num_threads <= 0) {
    team.num_threads = std::max(1, usable_cores() / team.node.size());
  }
  return team;
}

DeviceRequest device_request(const Team& team,
                             const std::string& backend,
                             const std::optional<std::string>& gpu_memory) {
  DeviceRequest request;
  request.backend = backend;
  if (gpu_memory) {
    request.gpu_memory = parse_size(*gpu_memory);
  }
  request.num_threads = team.num_threads;
  request.node_rank = team.node.rank();
  request.node_size = team.node.size();
  return request;
}

std::vector<std::size_t> assign_to_nodes(std::span<const std::uint64_t> costs,
                                         std::span<const int> node_ranks) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<double> load(node_ranks.size(), 0.0);
  std::vector<std::size_t> node_of(costs.size());
  for (const std::size_t item : order) {
    const auto least = static_cast<std::size_t>(std::ranges::min_element(load) - load.begin());
    node_of[item] = least;
    load[least] += static_cast<double>(costs[item]) / node_ranks[least];
  }
  return node_of;
}

std::vector<std::size_t> own_tasks(const Team& team,
                                   std::span<const std::uint64_t> costs,
                                   const std::function<bool(std::size_t task)>& is_done) {
  const std::vector<std::size_t> node_of = assign_to_nodes(costs, team.node_ranks);
  std::vector<std::size_t> tasks;
  for (std::size_t task = 0; task < costs.size(); ++task) {
    if (node_of[task] == team.node_index && !is_done(task)) {
      tasks.push_back(task);
    }
  }
  std::ranges::stable_sort(tasks,
                           [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  return tasks;
}

void run_tasks(const Team& team,
               const TaskList& list,
               const std::function<void(std::size_t task, int worker)>& run,
               const std::function<void()>& settle) {
  SharedCounter counter(team.node);
  std::optional<Heartbeat> heartbeat;
  if (team.heartbeat) {
    heartbeat.emplace(team, list);
  }
  JobStop stop(team.world);
  // Whether to go on; the main thread also passes the word between nodes.
  const auto may_go_on = [&](int worker) {
    if (worker == 0 && is_interrupted()) {
      stop.request();
    }
    if (is_interrupted() || (worker == 0 && stop.is_requested())) {
      counter.stop();
    }
    return !counter.stopped();
  };
  const auto round =
      static_cast<std::uint64_t>(team.node.size()) * static_cast<std::uint64_t>(team.num_threads);
  const auto work = [&](int worker) {
    try {
      for (std::uint64_t next = counter.take(); next < list.tasks.size() && may_go_on(worker);
           next = counter.take()) {
        {
          const WorkTimer timer(list.work);
          if (list.expect && next + round < list.tasks.size()) {
            list.expect(list.tasks[next + round], worker);
          }
          run(list.tasks[next], worker);
        }
        if (heartbeat) {
          heartbeat->finished_task(list.bytes(list.tasks[next]),
                                   list.tensors ? list.tensors(list.tasks[next]) : 0);
        }
      }
    } catch (...) {
      counter.stop();
      throw;
    }
  };
  const auto all = [&] {
    try {
      run_workers(team.num_threads, work);
    } catch (...) {
      stop.request();
      try {
        settle();
      } catch (const Error&) {  // the first failure is the one to tell
      }
      throw;
    }
    settle();
    if (heartbeat) {
      heartbeat->finished_all();
    }
    throw_if_interrupted();
  };
  try {
    team.world.collectively(all);
  } catch (const Error& error) {
    if (error.is_agreed()) {
      stop.settle();
    }
    throw;
  }
  stop.settle();
  if (heartbeat) {
    heartbeat->end();
  }
}

void check_interrupted(const Team& team) {
  team.world.collectively(throw_if_interrupted);
}

}  // namespace quantmill
