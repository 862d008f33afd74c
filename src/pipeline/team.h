#pragma once

// The ranks and threads of a job, and how a phase's tasks are shared among them.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/work_times.h"
#include "comm/mpi.h"
#include "device/context.h"

namespace quantmill {

// How a job watches its ranks; see heartbeat.h.
struct HeartbeatSettings {
  Log log;                             // rank 0's
  std::chrono::milliseconds interval;  // more than 0
  std::filesystem::path folder;        // that all nodes see
  bool tells_progress = true;          // or of ranks that do not get on alone
};

// Nodes are numbered by their lowest rank. Every call of the free functions below is collective
// over `world`.
struct Team {
  Communicator world;
  Communicator node;
  std::size_t node_index = 0;
  std::vector<int> node_ranks;  // number of ranks of each node
  int num_threads = 1;          // of this rank
  std::optional<HeartbeatSettings> heartbeat;

  [[nodiscard]] bool is_leader() const { return world.rank() == 0; }
};

// Cores that this process may use: a batch system may have bound it to a few.
int usable_cores();

// ranks_per_node: see Communicator::split_by_node. num_threads 0: the cores this process may use,
// shared out among the node's ranks.
Team make_team(int num_threads, int ranks_per_node);

// For open_device: what this rank may take of its node's GPUs. `gpu_memory`: of this rank, as
// parse_size reads it, or nothing. Not collective. kUsage: it is no size.
DeviceRequest device_request(const Team& team,
                             const std::string& backend,
                             const std::optional<std::string>& gpu_memory);

// Assigns items to nodes: largest cost first, each to the node with the least cost per rank so far
// (ties: lowest index). Pure. Returns the node of each item.
std::vector<std::size_t> assign_to_nodes(std::span<const std::uint64_t> costs,
                                         std::span<const int> node_ranks);

// The items of this node (assign_to_nodes) that are not done, largest cost first. The same on each
// of its ranks. Pure.
std::vector<std::size_t> own_tasks(const Team& team,
                                   std::span<const std::uint64_t> costs,
                                   const std::function<bool(std::size_t task)>& is_done);

// The member `cost` of each.
template <typename Task>
std::vector<std::uint64_t> costs_of(const std::vector<Task>& tasks) {
  std::vector<std::uint64_t> costs;
  costs.reserve(tasks.size());
  for (const Task& task : tasks) {
    costs.push_back(task.cost);
  }
  return costs;
}

// One node's share of a phase, the same on each of its ranks.
struct TaskList {
  std::string_view phase;  // what the log calls it
  std::vector<std::size_t> tasks;
  std::function<std::uint64_t(std::size_t task)> bytes;  // read and written, to tell progress
  Work work = Work::kSearch;  // what a task's time counts as, less what it reads, decodes, writes
  // Called before a worker runs a task, with one that will be run about a round later, so that what
  // it reads comes into memory meanwhile; may be empty.
  std::function<void(std::size_t task, int worker)> expect = {};
  // Which part of a tensor a task is, to tell how many tensors are finished; may be empty.
  std::function<double(std::size_t task)> tensors = {};
};

// Runs run(task, worker) for every task of the list, once in the whole node; free workers of any
// rank take the next. At the end `settle` runs once on every rank, also after a failure: it makes
// durable what was done. If a task throws, or a signal asks any rank to stop (interrupt.h), no rank
// of the job starts another task, and the Error (kInterrupted for a signal) is thrown on all of
// them. With team.heartbeat the log tells progress and names ranks that do not get on.
void run_tasks(const Team& team,
               const TaskList& list,
               const std::function<void(std::size_t task, int worker)>& run,
               const std::function<void()>& settle);

// Throws kInterrupted on all ranks if a signal has come to any of them. For places between phases.
void check_interrupted(const Team& team);

}  // namespace quantmill
