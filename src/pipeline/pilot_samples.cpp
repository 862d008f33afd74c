#include "pipeline/pilot_samples.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/interrupt.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kSyncBytes = std::uint64_t{64} << 20;
constexpr double kMostRounds = 1000;

// What some tasks of a kind took.
struct Sample {
  std::size_t tasks = 0;
  double cost = 0;
  double wall = 0;
  std::array<double, kNumWorks> works{};
  double bytes_read = 0;
};

Sample do_some(const std::vector<std::size_t>& tasks,
               std::size_t wanted,
               bool spread,
               const std::function<double(std::size_t)>& cost,
               const std::function<void(std::span<const std::size_t>)>& run) {
  stop_if_interrupted();
  const std::size_t count = std::min(wanted, tasks.size());
  std::vector<std::size_t> chosen;
  Sample sample;
  sample.tasks = count;
  for (std::size_t i = 0; i < count; ++i) {
    chosen.push_back(tasks[spread ? i * tasks.size() / count : i]);
    sample.cost += cost(chosen.back());
  }
  const WorkTimes before = work_times();
  sample.wall = std::max(1e-9, seconds_of([&] { run(chosen); }));
  const WorkTimes after = work_times();
  for (std::size_t work = 0; work < kNumWorks; ++work) {
    sample.works[work] =
        static_cast<double>(after.nanoseconds[work] - before.nanoseconds[work]) / 1e9;
  }
  sample.bytes_read = static_cast<double>(after.bytes_read - before.bytes_read);
  return sample;
}

}  // namespace

double seconds_of(const std::function<void()>& body) {
  const auto begun = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

void stop_if_interrupted() {
  if (is_interrupted()) {
    throw Error(ErrorCode::kInterrupted, fmt::format("stopped by {}", interrupting_signal()));
  }
}

std::map<std::string, double> Sampler::time(
    const TaskKinds& kinds,
    const std::function<double(std::size_t)>& cost,
    bool spread,
    const std::function<void(std::span<const std::size_t>)>& run,
    TaskTimes& times) const {
  double all = 0;
  for (const auto& [name, kind] : kinds) {
    all += kind.cost;
  }
  const auto workers = static_cast<std::size_t>(workers_);
  std::map<std::string, double> beside;
  for (const auto& [name, kind] : kinds) {
    const Sample first = do_some(kind.tasks, workers, spread, cost, run);
    const double slice = seconds_ * kind.cost / all;
    const auto rounds = static_cast<std::size_t>(std::clamp(slice / first.wall, 1.0, kMostRounds));
    const Sample last = rounds < 2 || kind.tasks.size() <= workers
                            ? first
                            : do_some(kind.tasks, rounds * workers, spread, cost, run);
    const auto busy = static_cast<double>(std::min(last.tasks, workers));
    double rate = last.wall * busy / last.cost;
    if (!spread && last.cost > first.cost && last.wall > first.wall) {
      rate = (last.wall - first.wall) * busy / (last.cost - first.cost);
      beside[name] = std::max(0.0, first.wall - rate * first.cost / busy);
    }
    for (const std::size_t task : kind.tasks) {
      times.seconds[task] = rate * cost(task);
    }
    const double share = kind.cost / last.cost;
    for (std::size_t work = 0; work < kNumWorks; ++work) {
      times.work_seconds[work] += last.works[work] * share;
    }
    times.bytes_read += last.bytes_read * share;
  }
  return beside;
}

PilotFile::PilotFile(const std::filesystem::path& folder, std::uint64_t size_bytes)
    : path_(folder / fmt::format(".quantmill-pilot.{}", ::getpid())),
      file_(File::open_to_write(path_)),
      size_bytes_(size_bytes) {
  file_.reserve(size_bytes_);
}

PilotFile::~PilotFile() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void PilotFile::write(std::span<const std::byte> bytes) {
  std::uint64_t offset = written_.fetch_add(bytes.size()) % size_bytes_;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min<std::uint64_t>(bytes.size(), size_bytes_ - offset));
    file_.write_at(offset, piece);
    bytes = bytes.subspan(piece.size());
    offset = 0;
  }
}

std::pair<double, double> PilotFile::finish() {
  const std::vector<std::byte> piece(std::size_t{4} << 20);
  while (written_.load() < std::min(size_bytes_, kSyncBytes)) {
    write(piece);
  }
  const auto bytes = static_cast<double>(std::min(written_.load(), size_bytes_));
  const double synced = seconds_of([&] { file_.sync(); });
  const double hashed = seconds_of([&] { (void)hash_file(path_); });
  return {bytes / std::max(synced, 1e-9),
          static_cast<double>(size_bytes_) / std::max(hashed, 1e-9)};
}

}  // namespace quantmill
