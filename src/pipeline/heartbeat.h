#pragma once

// Whether the ranks of a job get on: while they work on the tasks of a phase, the log gets a line
// of progress at every interval, or a live line (Log::show) all the time, and names ranks that
// finish nothing, or do not run at all.
//
// A rank that is stopped can't answer, so nobody asks: each leaves signs in memory that its node
// shares, and the first rank of each node passes on those of its node in a small file,
// "heartbeat.NODE" in a folder that all nodes see. Rank 0 looks; rank 1 looks whether rank 0 still
// runs. Nothing of this touches the tasks or their results.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi.h"
#include "pipeline/progress.h"
#include "pipeline/team.h"

namespace quantmill {

// What is seen of one rank.
struct RankSigns {
  bool has_work = false;                  // tasks, or results to make durable
  std::chrono::nanoseconds unfinished{};  // since it finished a task
  std::chrono::nanoseconds silent{};      // since its process gave a sign of life
};

// Turns what is seen of ranks into lines for the log.
class RankWatch {
 public:
  // names: of the ranks looked at; interval: how long one may finish nothing.
  RankWatch(std::vector<std::string> names, std::chrono::nanoseconds interval);

  // signs: one per name. A line for every rank that has finished nothing for the interval, for
  // twice as long, four times …; and one when it goes on.
  std::vector<std::string> look(std::span<const RankSigns> signs);
  // All ranks are known to have gone on: a line for each that was last told not to.
  std::vector<std::string> finish();

 private:
  struct Rank {
    std::string name;
    std::chrono::nanoseconds next;         // when to tell of it
    std::chrono::nanoseconds told_last{};  // how long it had been; 0 if nothing is to be taken back
  };

  std::vector<Rank> ranks_;
  std::chrono::nanoseconds interval_;
};

class Heartbeat {
 public:
  // Collective over team.world; team.heartbeat must be set, and both outlive it. Starts to watch.
  Heartbeat(const Team& team, const TaskList& list);
  // Collective, as SharedWords.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // This rank finished a task, which was that part of a tensor. Thread-safe, not collective.
  void finished_task(std::uint64_t bytes, double tensors) noexcept;
  // This rank has nothing left to do. Not collective.
  void finished_all() noexcept;
  // Ends the watch, when all ranks are known to have finished. Not collective.
  void end();

 private:
  struct Member {  // a rank of the job
    std::size_t node = 0;
    std::size_t place = 0;  // among the node's ranks
  };

  struct NodeFile {  // what is known of another node
    std::vector<std::uint64_t> words;
    std::uint64_t sequence = 0;  // 0: nothing yet
    std::uint64_t seen_at = 0;
  };

  void warn(std::span<const std::string> lines) const;
  void watch(const std::stop_token& stop);
  void pass_on();
  void read_other_nodes();
  void tell_of_ranks();
  [[nodiscard]] Progress progress() const;
  void tell_progress();
  [[nodiscard]] RankSigns signs_of(const Member& member) const;
  [[nodiscard]] std::uint64_t word_of(const Member& member, std::size_t word) const;
  [[nodiscard]] std::filesystem::path file_of(std::size_t node) const;

  const Team& team_;
  HeartbeatSettings settings_;
  std::string phase_;
  SharedWords words_;
  std::uint64_t token_ = 0;  // tells this watch's files from those of others
  std::uint64_t num_tasks_ = 0;
  std::uint64_t num_bytes_ = 0;
  std::uint64_t num_tensors_ = 0;  // in millionths
  std::chrono::steady_clock::time_point begun_;
  std::vector<std::string> names_;  // of the ranks
  std::vector<Member> members_;
  std::vector<NodeFile> nodes_;
  std::optional<RankWatch> rank_watch_;
  std::uint64_t sequence_ = 0;
  std::chrono::steady_clock::time_point next_progress_;
  std::mutex mutex_;
  std::condition_variable_any stopping_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace quantmill
