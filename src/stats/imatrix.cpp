#include "stats/imatrix.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "stats/byte_stream.h"
#include "stats/gguf.h"

namespace quantmill {
namespace {

constexpr std::string_view kSums = ".in_sum2";
constexpr std::string_view kCounts = ".counts";
constexpr std::int32_t kLongestName = 4096;
constexpr double kMostTokens = 1e18;

[[noreturn]] void refuse(std::string reason) {
  throw Error(ErrorCode::kInput, std::move(reason));
}

void check_values(const std::string& name,
                  std::string_view what,
                  const std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!(std::isfinite(values[i]) && values[i] >= 0)) {
      refuse(fmt::format("{} of '{}' holds {} at {}; a finite value of 0 or more was expected",
                         what,
                         name,
                         values[i],
                         i));
    }
  }
}

// `name` is the weight's. The sums become means.
ImatrixEntry make_entry(const std::string& name,
                        const GgufTensor& shape,
                        std::vector<float> sums,
                        const std::vector<float>& counts) {
  ImatrixEntry entry;
  entry.num_channels = shape.dimensions.empty() ? 0 : shape.dimensions.front();
  if (entry.num_channels == 0 || sums.empty()) {
    refuse(fmt::format("the sums of '{}' are empty", name));
  }
  if (counts.size() != sums.size() / entry.num_channels) {
    refuse(fmt::format("'{}' has sums of {} matrices, but {} counts",
                       name,
                       sums.size() / entry.num_channels,
                       counts.size()));
  }
  check_values(name, "in_sum2", sums);
  check_values(name, "counts", counts);
  entry.tokens.emplace();
  for (std::size_t matrix = 0; matrix < counts.size(); ++matrix) {
    const double count = counts[matrix];
    if (count > kMostTokens) {
      refuse(fmt::format("counts of '{}' holds {}, more tokens than anybody has", name, count));
    }
    entry.tokens->push_back(static_cast<std::uint64_t>(std::llround(count)));
    for (std::size_t c = 0; c < entry.num_channels; ++c) {
      float& value = sums[matrix * entry.num_channels + c];
      value = count > 0 ? static_cast<float>(double{value} / count) : 0.0F;
    }
  }
  entry.sqmean = std::move(sums);
  return entry;
}

Imatrix read_gguf(File opened) {
  const GgufFile file(std::move(opened));
  const auto type = file.texts().find("general.type");
  if (type == file.texts().end() || type->second != "imatrix") {
    refuse(
        fmt::format("a GGUF file whose general.type is {}; 'imatrix' was expected",
                    type == file.texts().end() ? "not stated" : fmt::format("'{}'", type->second)));
  }
  Imatrix imatrix;
  for (const auto& [tensor, shape] : file.tensors()) {
    if (!tensor.ends_with(kSums)) {
      continue;
    }
    const std::string name = tensor.substr(0, tensor.size() - kSums.size());
    const std::string counts = name + std::string(kCounts);
    if (!file.tensors().contains(counts)) {
      refuse(fmt::format("'{}' has sums, but no '{}'", name, counts));
    }
    imatrix[name] = make_entry(name, shape, file.read(tensor), file.read(counts));
  }
  return imatrix;
}

// Entries of: name's length, name, number of calls, number of values, values that are `calls` times
// E[x^2]; then, in newer files, the number of chunks and the name of the text.
Imatrix read_dat(const File& file) {
  ByteStream stream(file);
  const auto read_length = [&](std::int32_t most, std::string_view what) {
    const std::uint64_t at = stream.offset();
    const auto length = stream.value<std::int32_t>();
    if (length < 0 || length > most) {
      refuse(fmt::format("{} is {} at offset {}; this is neither a GGUF file nor an imatrix.dat",
                         what,
                         length,
                         at));
    }
    return length;
  };
  Imatrix imatrix;
  const std::int32_t num_entries = read_length(1 << 24, "the number of entries");
  for (std::int32_t i = 0; i < num_entries; ++i) {
    const std::string name =
        stream.text(static_cast<std::uint64_t>(read_length(kLongestName, "the length of a name")));
    const auto calls = static_cast<double>(read_length(INT32_MAX, "a number of calls"));
    const std::int32_t num_values = read_length(INT32_MAX, "a number of values");
    ImatrixEntry entry;
    entry.num_channels = static_cast<std::size_t>(num_values);
    entry.sqmean = stream.floats(static_cast<std::uint64_t>(num_values));
    if (entry.sqmean.empty()) {
      refuse(fmt::format("the sums of '{}' are empty", name));
    }
    check_values(name, "the entry", entry.sqmean);
    for (float& value : entry.sqmean) {
      value = calls > 0 ? static_cast<float>(double{value} / calls) : 0.0F;
    }
    if (!imatrix.emplace(name, std::move(entry)).second) {
      refuse(fmt::format("there are two entries '{}'", name));
    }
  }
  if (stream.left() != 0) {
    (void)stream.value<std::int32_t>();  // chunks
    stream.skip(
        static_cast<std::uint64_t>(read_length(kLongestName, "the length of the text's name")));
  }
  if (stream.left() != 0) {
    refuse(fmt::format("{} bytes are left over after the last entry", stream.left()));
  }
  return imatrix;
}

}  // namespace

Imatrix read_imatrix(const std::filesystem::path& path) {
  return with_context(fmt::format("\"{}\"", path.string()), [&] {
    File file = File::open_to_read(path);
    Imatrix imatrix = GgufFile::is_gguf(file) ? read_gguf(std::move(file)) : read_dat(file);
    if (imatrix.empty()) {
      refuse("an imatrix without entries");
    }
    return imatrix;
  });
}

}  // namespace quantmill
