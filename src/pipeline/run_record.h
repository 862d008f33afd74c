#pragma once

// quantmill_run.json: how one run of a job went. Command, machine, times, memory: what differs from
// run to run, and so has a file of its own that the manifest does not list. Keys: run_schema (1),
// program, command (list), started (UTC), seconds, resumed, ranks, nodes, threads_per_rank,
// backend, phases (list of {name, seconds}), worker_seconds ({read, decode, search, encode, write,
// wait}: of all threads of all ranks together), bytes_read, bytes_written, peak_memory_bytes (of
// each rank), limited_by. It may be removed.

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/work_times.h"
#include "device/context.h"
#include "pipeline/team.h"

namespace quantmill {

inline constexpr const char* kRunRecordName = "quantmill_run.json";

// The most memory that this process has held so far; 0 where the system does not tell.
std::uint64_t peak_memory_bytes();

// "search (61 % of the threads' time)": what most of these seconds, by Work, are spent on; empty if
// nothing took any.
std::string most_of(const std::array<double, kNumWorks>& seconds);

// The phases of a job, one after the other, from when it is made.
class PhaseClock {
 public:
  // Ends a phase, which began where the last one ended; one that took part before is added to.
  // Returns its seconds, of this part.
  double finish(const std::string& phase);

  [[nodiscard]] double total_seconds() const;

  [[nodiscard]] const std::vector<std::pair<std::string, double>>& phases() const {
    return phases_;
  }

  [[nodiscard]] std::chrono::system_clock::time_point started() const { return started_; }

 private:
  std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = start_;
  std::vector<std::pair<std::string, double>> phases_;
};

struct RunRecord {
  std::vector<std::string> command;
  std::chrono::system_clock::time_point started;
  double seconds = 0;
  bool resumed = false;
  int ranks = 1;
  std::size_t nodes = 1;
  int threads_per_rank = 1;
  std::string backend;
  std::vector<std::pair<std::string, double>> phases;
  std::vector<std::pair<std::string, double>> worker_seconds;  // "read" … "wait"
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::vector<std::uint64_t> peak_memory_bytes;  // of each rank
};

// Collective over team.world; the same on all ranks. `busy_seconds`: for how long the threads of
// the ranks were there to work on tasks.
RunRecord make_run_record(const Team& team,
                          const Context& context,
                          const PhaseClock& clock,
                          double busy_seconds,
                          bool resumed,
                          std::vector<std::string> command);

std::string print_run_record(const RunRecord& record);

// Lines for people: times by phase, what the threads did, memory, what limited the speed.
std::string describe_run(const RunRecord& record);

}  // namespace quantmill
