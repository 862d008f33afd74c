#include "pipeline/estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/byte_size.h"
#include "base/error.h"
#include "pipeline/produce.h"
#include "pipeline/run_record.h"
#include "pipeline/search_chunks.h"
#include "pipeline/weight_reader.h"

namespace quantmill {
namespace {

// What MPI and the libraries of a job hold beside what `plan` does (Open MPI 4.1).
constexpr std::uint64_t kMpiBytes = std::uint64_t{14} << 20;

// How long `workers` take that take the longest task that is left, again and again.
double span_of(std::span<const double> seconds, int workers) {
  std::vector<double> order(seconds.begin(), seconds.end());
  std::ranges::sort(order, std::ranges::greater());
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int worker = 0; worker < workers; ++worker) {
    free_at.push(0);
  }
  double last = 0;
  for (const double task : order) {
    const double done = free_at.top() + task;
    free_at.pop();
    free_at.push(done);
    last = std::max(last, done);
  }
  return last;
}

double sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// What the search and the writing read, of plain rows and codes alike.
std::uint64_t bytes_to_read(const Plan& plan) {
  std::uint64_t bytes = plan.source_bytes;
  for (const SearchTask& task : plan.search_tasks) {
    const ModelTensor& tensor = plan.architecture.tensors[task.tensor];
    bytes += task.cost / tensor.in_features() *
             WeightReader::loaded_row_bytes(plan.architecture.weights[tensor.stored],
                                            tensor.in_features());
  }
  return bytes;
}

// What is chosen block by block for every group, and the largest wave of what is found for it.
std::uint64_t block_search_bytes(const Plan& plan) {
  std::uint64_t channels = 0;
  for (const FoldGroup& group : plan.architecture.fold_groups) {
    channels += group.num_channels;
  }
  return largest_wave_bytes(plan) + sizeof(double) * channels;
}

// Sums of every search task and its candidates, and of every write task.
std::uint64_t result_bytes(const Plan& plan) {
  const std::uint64_t searched =
      plan.recipe.scaling == Scaling::kBlockGrid
          ? block_search_bytes(plan)
          : sizeof(double) * plan.search_tasks.size() * tried_exponents(plan.recipe).size();
  return searched + sizeof(double) * 3 * plan.write_tasks.size();
}

std::uint64_t rank_share(std::uint64_t bytes, int ranks) {
  return bytes / static_cast<std::uint64_t>(std::max(1, ranks));
}

}  // namespace

AssumedSpeeds parse_speeds(const std::string& text, const AssumedSpeeds& otherwise) {
  AssumedSpeeds speeds = otherwise;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    double* const speed = name == "read"    ? &speeds.read
                          : name == "write" ? &speeds.write
                          : name == "rate"  ? &speeds.rate
                                            : nullptr;
    if (speed == nullptr || equals == std::string::npos) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("--assume '{}': give read=SIZE, write=SIZE and rate=SIZE, bytes a "
                              "second, with commas between them",
                              part));
    }
    *speed = static_cast<double>(parse_size(part.substr(equals + 1)));
    if (*speed == 0) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("--assume {} would take forever; give bytes a second", part));
    }
    begin = end + 1;
  }
  return speeds;
}

Estimate estimate_job(const Plan& plan, const Pilot& pilot, const JobSize& size) {
  Estimate estimate;
  estimate.is_measured = true;
  estimate.ranks = size.ranks;
  estimate.threads = size.threads;
  const auto workers = static_cast<double>(pilot.workers);
  const auto output = static_cast<double>(plan.output_bytes);
  estimate.phases = {
      {"plan", size.plan_seconds},
      {"search",
       span_of(pilot.search.seconds, pilot.workers) + pilot.search_shared_seconds / workers},
      {"measure", span_of(pilot.measure.seconds, pilot.workers)},
      {"write",
       span_of(pilot.write.seconds, pilot.workers) + pilot.factor_seconds +
           output / size.ranks / pilot.hash_rate + output / pilot.sync_rate}};
  std::array<double, kNumWorks> works{};
  for (const TaskTimes* times : {&pilot.search, &pilot.measure, &pilot.write}) {
    estimate.bytes_read += static_cast<std::uint64_t>(times->bytes_read);
    estimate.core_seconds += sum(times->seconds);
    for (std::size_t work = 0; work < kNumWorks; ++work) {
      works[work] += times->work_seconds[work];
    }
  }
  works[static_cast<std::size_t>(Work::kWrite)] += output / pilot.sync_rate;
  works[static_cast<std::size_t>(Work::kEncode)] += pilot.factor_seconds;
  estimate.core_seconds +=
      pilot.search_shared_seconds + pilot.factor_seconds + output / pilot.hash_rate;
  for (const auto& [name, seconds] : estimate.phases) {
    estimate.seconds += seconds;
  }
  estimate.limited_by = most_of(works);
  estimate.bytes_written = plan.output_bytes;
  estimate.bytes_read += plan.output_bytes;  // to hash it
  estimate.peak_memory_bytes = pilot.peak_memory_bytes + result_bytes(plan);
  estimate.read_rate = pilot.read_rate;
  estimate.write_rate = pilot.sync_rate;
  estimate.measuring_seconds = pilot.seconds;
  return estimate;
}

Estimate estimate_job(const Plan& plan, const AssumedSpeeds& speeds, const JobSize& size) {
  Estimate estimate;
  estimate.ranks = size.ranks;
  estimate.threads = size.threads;
  const std::uint64_t source_reads = bytes_to_read(plan);
  estimate.bytes_read = source_reads + plan.output_bytes;  // that to hash it
  estimate.bytes_written = plan.output_bytes;
  estimate.read_rate = speeds.read;
  estimate.write_rate = speeds.write;
  estimate.core_seconds = static_cast<double>(plan.source_bytes) / speeds.rate;
  const double computing = estimate.core_seconds / (size.ranks * size.threads);
  const double reading = speeds.read > 0 ? static_cast<double>(source_reads) / speeds.read : 0;
  const double writing =
      speeds.write > 0 ? static_cast<double>(estimate.bytes_written) / speeds.write : 0;
  // Threads that wait for the disk let others compute.
  const double longest = std::max({computing, reading, writing});
  estimate.limited_by = longest == computing ? "computing" : longest == reading ? "read" : "write";
  estimate.phases = {{"plan", size.plan_seconds}, {"search, measure and write", longest}};
  estimate.seconds = size.plan_seconds + longest;
  const std::uint64_t worker = RowProducer::held_bytes(plan, size.buffer_bytes);
  estimate.peak_memory_bytes = size.process_bytes + kMpiBytes + size.factor_bytes +
                               result_bytes(plan) +
                               static_cast<std::uint64_t>(size.threads) * worker;
  return estimate;
}

std::string describe_estimate(const Estimate& estimate) {
  std::string text = fmt::format(
      "estimate, {}: {:.1f} s on {} rank{} of {} thread{}\n",
      estimate.is_measured ? fmt::format("measured here in {:.1f} s", estimate.measuring_seconds)
                           : "assumed (--measure measures this machine, --assume tells of another)",
      estimate.seconds,
      estimate.ranks,
      estimate.ranks == 1 ? "" : "s",
      estimate.threads,
      estimate.threads == 1 ? "" : "s");
  std::string phases;
  for (const auto& [name, seconds] : estimate.phases) {
    phases += fmt::format("{}{} {:.1f} s", phases.empty() ? "" : ", ", name, seconds);
  }
  text += fmt::format("  {}; most on {}\n", phases, estimate.limited_by);
  text += fmt::format("  each rank reads {} and writes {}, peak memory {}\n",
                      format_size(rank_share(estimate.bytes_read, estimate.ranks)),
                      format_size(rank_share(estimate.bytes_written, estimate.ranks)),
                      format_size(estimate.peak_memory_bytes));
  if (estimate.is_measured) {
    text += fmt::format("  a thread reads {}/s from files as they are now, the disk takes {}/s\n",
                        format_size(static_cast<std::uint64_t>(estimate.read_rate)),
                        format_size(static_cast<std::uint64_t>(estimate.write_rate)));
  }
  return text;
}

std::string estimate_to_json(const Estimate& estimate) {
  nlohmann::ordered_json json = {{"from", estimate.is_measured ? "measured" : "assumed"},
                                 {"ranks", estimate.ranks},
                                 {"threads_per_rank", estimate.threads},
                                 {"seconds", estimate.seconds}};
  json["phases"] = nlohmann::ordered_json::array();
  for (const auto& [name, seconds] : estimate.phases) {
    json["phases"].push_back({{"name", name}, {"seconds", seconds}});
  }
  json["limited_by"] = estimate.limited_by;
  json["core_seconds"] = estimate.core_seconds;
  json["bytes_read"] = estimate.bytes_read;
  json["bytes_written"] = estimate.bytes_written;
  json["of_each_rank"] = {{"bytes_read", rank_share(estimate.bytes_read, estimate.ranks)},
                          {"bytes_written", rank_share(estimate.bytes_written, estimate.ranks)},
                          {"peak_memory_bytes", estimate.peak_memory_bytes}};
  json["read_bytes_per_second"] = estimate.read_rate;
  json["write_bytes_per_second"] = estimate.write_rate;
  json["measuring_seconds"] = estimate.measuring_seconds;
  return json.dump();
}

}  // namespace quantmill
