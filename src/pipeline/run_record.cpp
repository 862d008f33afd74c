#include "pipeline/run_record.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <fstream>
#include <numeric>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/byte_size.h"
#include "base/version.h"
#include "base/work_times.h"

namespace quantmill {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, kNumWorks> kWorkNames = {
    "read", "decode", "search", "encode", "write"};

// What one rank tells the others.
struct RankReport {
  WorkTimes times;
  std::uint64_t num_threads = 0;
  std::uint64_t peak_memory_bytes = 0;
};

std::vector<RankReport> gather_reports(const Team& team) {
  const RankReport mine{
      work_times(), static_cast<std::uint64_t>(team.num_threads), peak_memory_bytes()};
  std::vector<RankReport> reports;
  for (const auto& bytes : team.world.gather_all(std::as_bytes(std::span(&mine, 1)))) {
    std::memcpy(&reports.emplace_back(), bytes.data(), sizeof(RankReport));
  }
  return reports;
}

// As most_of(), of named ones.
std::string limit_of(const std::vector<std::pair<std::string, double>>& works) {
  double total = 0;
  const std::pair<std::string, double>* most = nullptr;
  for (const auto& work : works) {
    total += work.second;
    most = most == nullptr || work.second > most->second ? &work : most;
  }
  return total == 0
             ? ""
             : fmt::format(
                   "{} ({:.0f} % of the threads' time)", most->first, 100 * most->second / total);
}

Json pairs_to_json(const std::vector<std::pair<std::string, double>>& pairs) {
  Json json = Json::object();
  for (const auto& [name, seconds] : pairs) {
    json[name] = seconds;
  }
  return json;
}

std::string list_seconds(const std::vector<std::pair<std::string, double>>& pairs) {
  std::string text;
  for (const auto& [name, seconds] : pairs) {
    text += fmt::format("{}{} {:.1f} s", text.empty() ? "" : ", ", name, seconds);
  }
  return text;
}

}  // namespace

std::uint64_t peak_memory_bytes() {
  // getrusage's also counts the process that started this one, before exec.
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    std::uint64_t kibibytes = 0;
    if (key == "VmHWM:" && status >> kibibytes) {
      return kibibytes * 1024;
    }
  }
  return 0;
}

std::string most_of(const std::array<double, kNumWorks>& seconds) {
  std::vector<std::pair<std::string, double>> works;
  for (std::size_t work = 0; work < kNumWorks; ++work) {
    works.emplace_back(kWorkNames[work], seconds[work]);
  }
  return limit_of(works);
}

double PhaseClock::finish(const std::string& phase) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  const auto known = std::ranges::find(phases_, phase, &std::pair<std::string, double>::first);
  if (known == phases_.end()) {
    phases_.emplace_back(phase, seconds);
  } else {
    known->second += seconds;
  }
  return seconds;
}

double PhaseClock::total_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

RunRecord make_run_record(const Team& team,
                          const Context& context,
                          const PhaseClock& clock,
                          double busy_seconds,
                          bool resumed,
                          std::vector<std::string> command) {
  RunRecord record;
  record.command = std::move(command);
  record.started = clock.started();
  record.seconds = clock.total_seconds();
  record.resumed = resumed;
  record.ranks = team.world.size();
  record.nodes = team.node_ranks.size();
  record.threads_per_rank = team.num_threads;
  record.backend = describe_backend(context);
  record.phases = clock.phases();
  std::array<double, kNumWorks> seconds{};
  double there = 0;
  for (const RankReport& rank : gather_reports(team)) {
    for (std::size_t work = 0; work < kNumWorks; ++work) {
      seconds[work] += static_cast<double>(rank.times.nanoseconds[work]) / 1e9;
    }
    there += busy_seconds * static_cast<double>(rank.num_threads);
    record.bytes_read += rank.times.bytes_read;
    record.bytes_written += rank.times.bytes_written;
    record.peak_memory_bytes.push_back(rank.peak_memory_bytes);
  }
  for (std::size_t work = 0; work < kNumWorks; ++work) {
    record.worker_seconds.emplace_back(kWorkNames[work], seconds[work]);
  }
  const double busy = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  record.worker_seconds.emplace_back("wait", std::max(0.0, there - busy));
  return record;
}

std::string print_run_record(const RunRecord& record) {
  Json json;
  json["run_schema"] = 1;
  json["program"] = fmt::format("quantmill {}", program_version());
  json["command"] = record.command;
  json["started"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                                fmt::gmtime(std::chrono::system_clock::to_time_t(record.started)));
  json["seconds"] = record.seconds;
  json["resumed"] = record.resumed;
  json["ranks"] = record.ranks;
  json["nodes"] = record.nodes;
  json["threads_per_rank"] = record.threads_per_rank;
  json["backend"] = record.backend;
  json["phases"] = Json::array();
  for (const auto& [name, seconds] : record.phases) {
    json["phases"].push_back({{"name", name}, {"seconds", seconds}});
  }
  json["worker_seconds"] = pairs_to_json(record.worker_seconds);
  json["bytes_read"] = record.bytes_read;
  json["bytes_written"] = record.bytes_written;
  json["peak_memory_bytes"] = record.peak_memory_bytes;
  json["limited_by"] = limit_of(record.worker_seconds);
  return json.dump(1) + "\n";
}

std::string describe_run(const RunRecord& record) {
  const auto largest = std::ranges::max_element(record.peak_memory_bytes);
  std::string text = fmt::format("phases: {}\n", list_seconds(record.phases));
  text += fmt::format("threads: {}; most on {}\n",
                      list_seconds(record.worker_seconds),
                      limit_of(record.worker_seconds));
  return text + fmt::format("read {}, wrote {}; peak memory {} (rank {})\n",
                            format_size(record.bytes_read),
                            format_size(record.bytes_written),
                            format_size(*largest),
                            largest - record.peak_memory_bytes.begin());
}

}  // namespace quantmill
