#pragma once

// What finished tasks gave, made durable while a job runs, so that a job that was killed goes on
// where it was. Each rank of each run appends to a file of its own, "journal.RUN.RANK": 8 bytes
// "QMJRNL01", then batches of
//   u32 payload bytes, payload, u64 XXH3-64 of the payload;
// a payload is records of u32 phase, u32 number of values, u64 task, f64 values. All little-endian.
// A batch that is cut off or does not match its checksum ends the file: what follows was never
// durable.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/file.h"

namespace quantmill {

enum class JournalPhase : std::uint32_t { kSearch = 1, kWrite = 2, kMeasure = 3 };

// Finished tasks, by their numbers in the plan.
class JournalContents {
 public:
  JournalContents() = default;
  // From payloads put one after the other, of a job with so many tasks (kMeasure has the numbers of
  // write tasks). kInput for anything malformed in them.
  JournalContents(std::span<const std::byte> payloads,
                  std::size_t num_search_tasks,
                  std::size_t num_write_tasks);

  // Whether the task is finished.
  [[nodiscard]] bool has(JournalPhase phase, std::uint64_t task) const;
  // The task's values, or nothing if it is not finished. kInput if it has not so many.
  [[nodiscard]] std::optional<std::span<const double>> find(JournalPhase phase,
                                                            std::uint64_t task,
                                                            std::size_t num_values) const;
  [[nodiscard]] std::size_t num_tasks(JournalPhase phase) const;

 private:
  // Where a task's values are.
  struct Place {
    std::size_t begin = 0;
    std::size_t count = 0;
    bool finished = false;
  };

  struct Phase {
    std::vector<Place> tasks;
    std::size_t num_finished = 0;
  };

  // Nothing for a number that is no phase's.
  Phase* find_phase(std::uint32_t phase);
  [[nodiscard]] const Phase& of(JournalPhase phase) const;

  std::vector<double> values_;
  Phase search_;
  Phase write_;
  Phase measure_;
};

// Appends the payloads of the sound batches at the start of a journal file's bytes.
void read_journal(std::span<const std::byte> bytes, std::vector<std::byte>& payloads);

// The same of every journal file in `folder`. kIo if one can't be read.
std::vector<std::byte> read_journals(const std::filesystem::path& folder);

// One more than the highest RUN of the journal files in `folder`; 0 if there are none.
std::uint64_t next_journal_run(const std::filesystem::path& folder);

// One rank's file. Thread-safe.
class JournalWriter {
 public:
  // Creates "journal.RUN.RANK" in `folder`, durably. interval: how long finished work may stay
  // undurable.
  JournalWriter(const std::filesystem::path& folder,
                std::uint64_t run,
                int rank,
                std::chrono::milliseconds interval);

  // Notes a finished task. If the interval has passed, calls flush.
  void add(JournalPhase phase, std::uint64_t task, std::span<const double> values);

  // What makes the data of finished tasks durable; called before their records are.
  void set_data_sync(std::function<void()> sync);

  // Makes everything noted so far durable: the data first, then the records. kIo. Once data can't
  // be synced it does nothing more: the kernel reports lost writes once, so a later sync that
  // succeeds proves nothing.
  void flush();

 private:
  void flush_locked();

  std::mutex mutex_;
  File file_;
  std::uint64_t end_ = 0;  // of the file
  std::chrono::milliseconds interval_;
  std::chrono::steady_clock::time_point last_flush_;
  std::vector<std::byte> pending_;
  std::function<void()> sync_data_;
  bool data_lost_ = false;
};

// What a rank knows and notes of a job's finished tasks: those of earlier runs, and its own from
// now on.
class JobJournal {
 public:
  // Notes nothing and knows nothing: a job without a journal.
  JobJournal() = default;
  JobJournal(JournalContents earlier, std::unique_ptr<JournalWriter> writer);

  // Whether an earlier run finished this task; what it got for it, or nothing (kInput, as of
  // JournalContents).
  [[nodiscard]] bool has(JournalPhase phase, std::uint64_t task) const;
  [[nodiscard]] std::optional<std::span<const double>> find(JournalPhase phase,
                                                            std::uint64_t task,
                                                            std::size_t num_values) const;
  [[nodiscard]] std::size_t num_tasks(JournalPhase phase) const;

  // As JournalWriter's; without one they do nothing.
  void add(JournalPhase phase, std::uint64_t task, std::span<const double> values);
  void set_data_sync(std::function<void()> sync);
  void flush();

 private:
  JournalContents earlier_;
  std::unique_ptr<JournalWriter> writer_;
};

}  // namespace quantmill
