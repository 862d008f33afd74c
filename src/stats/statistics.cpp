#include "stats/statistics.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

namespace {

// Names become file objects, messages and table cells: control characters would forge any of them.
void check_name(const std::string& name) {
  const auto is_control = [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7f;
  };
  if (name.empty() || std::any_of(name.begin(), name.end(), is_control)) {
    throw Error(ErrorCode::kInput,
                fmt::format("statistics: an input's name {}",
                            name.empty() ? "is empty" : "has control characters"));
  }
}

void check_values(const std::string& name,
                  std::string_view kind,
                  const std::vector<double>& values) {
  for (std::size_t channel = 0; channel < values.size(); ++channel) {
    const double value = values[channel];
    if (!std::isfinite(value) || value < 0) {
      throw Error(ErrorCode::kInput,
                  fmt::format("statistics of {}: {} of channel {} is {}; it must be finite and not "
                              "negative; record the statistics again",
                              name,
                              kind,
                              channel,
                              value));
    }
  }
}

void check_length(const std::string& name,
                  std::string_view kind,
                  const std::vector<double>& values,
                  std::size_t num_channels) {
  if (!values.empty() && values.size() != num_channels) {
    throw Error(ErrorCode::kInput,
                fmt::format("statistics of {}: {} has {} channels, absmean has {}",
                            name,
                            kind,
                            values.size(),
                            num_channels));
  }
}

void check_parts(const std::string& name, const InputStatistics& input) {
  if (input.partition == Partition::kReplicated) {
    return;
  }
  // Subtracting, not adding up: hostile lengths must not wrap around.
  std::uint64_t rest = input.absmean.size();
  for (const std::uint64_t channels : input.part_channels) {
    if (channels > rest) {
      rest = 1;
      break;
    }
    rest -= channels;
  }
  if (rest != 0) {
    throw Error(ErrorCode::kInput,
                fmt::format("statistics of {}: the ranks' parts do not add up to its {} channels",
                            name,
                            input.absmean.size()));
  }
}

}  // namespace

void check_statistics(const Statistics& statistics) {
  for (const auto& [name, input] : statistics) {
    check_name(name);
    if (input.absmean.empty()) {
      throw Error(ErrorCode::kInput,
                  fmt::format("statistics of {}: absmean has no channels", name));
    }
    check_length(name, "sqmean", input.sqmean, input.absmean.size());
    check_length(name, "absmax", input.absmax, input.absmean.size());
    check_values(name, "absmean", input.absmean);
    check_values(name, "sqmean", input.sqmean);
    check_values(name, "absmax", input.absmax);
    check_parts(name, input);
  }
}

}  // namespace quantmill
