#pragma once

// How long a job will take, how much it reads and writes and what memory its ranks hold, before it
// is run: from what a pilot measured, or from speeds that somebody gives.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/reader.h"
#include "pipeline/pilot.h"
#include "plan/plan.h"

namespace quantmill {

// Bytes a second.
struct AssumedSpeeds {
  double read = 0;   // of the file system, for all ranks together; 0: no limit
  double write = 0;  // the same
  double rate = 0;   // of source that one core gets done
};

// "read=2G,write=1G,rate=50M", each of them or not; what is not given is as in `otherwise`. kUsage.
AssumedSpeeds parse_speeds(const std::string& text, const AssumedSpeeds& otherwise);

// The ranks and threads that are to do the job, and what each rank holds beside its workers.
struct JobSize {
  int ranks = 1;
  int threads = 1;                  // of each rank
  std::uint64_t buffer_bytes = 0;   // of each worker (check_resources)
  std::uint64_t factor_bytes = 0;   // of Rounding::kGptq
  std::uint64_t process_bytes = 0;  // plan, headers and statistics: what `plan` itself holds
  double plan_seconds = 0;          // that it took to make the plan
};

struct Estimate {
  bool is_measured = false;
  int ranks = 1;
  int threads = 1;
  double seconds = 0;
  std::vector<std::pair<std::string, double>> phases;  // as in a RunRecord
  std::string limited_by;                              // "search (89 % of the threads' time)"
  double core_seconds = 0;                             // of all phases but plan
  std::uint64_t bytes_read = 0;         // by all ranks together, some of it more than once
  std::uint64_t bytes_written = 0;      // the same, exactly
  std::uint64_t peak_memory_bytes = 0;  // of a rank
  double read_rate = 0;  // bytes a second: measured of one worker, assumed of all; 0: no limit
  double write_rate = 0;
  double measuring_seconds = 0;  // 0 if assumed
};

// Pure, both of them.
Estimate estimate_job(const Plan& plan, const Pilot& pilot, const JobSize& size);
Estimate estimate_job(const Plan& plan, const AssumedSpeeds& speeds, const JobSize& size);

// Lines for people.
std::string describe_estimate(const Estimate& estimate);

// {"from": "measured" or "assumed", "ranks", "threads_per_rank", "seconds", "phases": [{"name",
// "seconds"}], "limited_by", "core_seconds", "bytes_read", "bytes_written", "of_each_rank":
// {"bytes_read", "bytes_written", "peak_memory_bytes"}, "read_bytes_per_second",
// "write_bytes_per_second", "measuring_seconds"}
std::string estimate_to_json(const Estimate& estimate);

}  // namespace quantmill
