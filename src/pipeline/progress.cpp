#include "pipeline/progress.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

namespace quantmill {
namespace {

double gigabytes(std::uint64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

// "0:07", "12:34", "1:02:03"
std::string format_time(double seconds) {
  const auto all = static_cast<std::uint64_t>(std::llround(seconds));
  const std::uint64_t hours = all / 3600;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, all / 60 % 60, all % 60)
                   : fmt::format("{}:{:02}", all / 60, all % 60);
}

}  // namespace

std::string progress_line(const Progress& progress, std::size_t columns) {
  const Progress::Count& bytes = progress.bytes;
  const double seconds = std::max(progress.seconds, 1e-9);
  const double share = bytes.all == 0 ? 1 : gigabytes(bytes.done) / gigabytes(bytes.all);
  std::vector<std::string> parts = {fmt::format("{} {:.2f}/{:.2f} GB ({:.0f} %)",
                                                progress.phase,
                                                gigabytes(bytes.done),
                                                gigabytes(bytes.all),
                                                std::floor(100 * share)),
                                    fmt::format("{:.2f} GB/s", gigabytes(bytes.done) / seconds)};
  if (bytes.done > 0) {
    parts.push_back(fmt::format("{} left", format_time(seconds * (1 - share) / share)));
  }
  const bool knows_tensors = progress.tensors.all > 0;
  const Progress::Count& count = knows_tensors ? progress.tensors : progress.tasks;
  parts.push_back(
      fmt::format("{}/{} {}", count.done, count.all, knows_tensors ? "tensors" : "tasks"));
  if (!progress.slowest.empty()) {
    parts.push_back(
        fmt::format("slowest {}: {:.2f} GB/s", progress.slowest, progress.slowest_rate / 1e9));
  }
  std::string line;
  for (const std::string& part : parts) {
    const std::string longer = line.empty() ? part : fmt::format("{}  {}", line, part);
    if (longer.size() > columns) {
      break;
    }
    line = longer;
  }
  return line;
}

}  // namespace quantmill
