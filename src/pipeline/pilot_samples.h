#pragma once

// How tasks of a kind are timed by doing a few of them, and where such tasks write.

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/work_times.h"

namespace quantmill {

// Of the tasks of one phase, in the order in which the job has them.
struct TaskTimes {
  std::vector<double> seconds;  // of a worker, beside as many others as were asked for
  std::array<double, kNumWorks> work_seconds{};  // of all of them together, by Work
  double bytes_read = 0;                         // by all of them together
};

// Tasks that take the same time for each unit of their cost.
struct TaskKind {
  std::vector<std::size_t> tasks;
  double cost = 0;  // of all
};

using TaskKinds = std::map<std::string, TaskKind>;

double seconds_of(const std::function<void()>& body);

// kInterrupted if a signal has come.
void stop_if_interrupted();

class Sampler {
 public:
  // seconds: about what time() may take.
  Sampler(int workers, double seconds) : workers_(workers), seconds_(seconds) {}

  // Does some tasks of each kind, at least one for each worker: run(tasks) does them on all
  // workers. Adds to `times`, whose seconds have a place for every task. `spread`: tasks from all
  // over the kind; else its first ones, and then what a kind takes beside its tasks is returned, in
  // seconds of a worker, where it shows. kInterrupted for a signal.
  std::map<std::string, double> time(const TaskKinds& kinds,
                                     const std::function<double(std::size_t task)>& cost,
                                     bool spread,
                                     const std::function<void(std::span<const std::size_t>)>& run,
                                     TaskTimes& times) const;

 private:
  int workers_;
  double seconds_;
};

// A file that is gone when this is.
class PilotFile {
 public:
  // kIo.
  PilotFile(const std::filesystem::path& folder, std::uint64_t size_bytes);
  ~PilotFile();
  PilotFile(const PilotFile&) = delete;
  PilotFile& operator=(const PilotFile&) = delete;

  // Somewhere in the file. Thread-safe. kIo.
  void write(std::span<const std::byte> bytes);

  // Bytes a second that are made durable, and hashed. kIo.
  std::pair<double, double> finish();

 private:
  std::filesystem::path path_;
  File file_;
  std::uint64_t size_bytes_;
  std::atomic<std::uint64_t> written_ = 0;
};

}  // namespace quantmill
