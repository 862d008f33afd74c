#include "pipeline/fingerprint.h"

#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/version.h"
#include "stats/serialize.h"

namespace quantmill {
namespace {

std::string hash_statistics(const Statistics& statistics) {
  Statistics values = statistics;
  for (auto& [name, input] : values) {
    input.partition = Partition::kReplicated;
    input.part_channels.clear();
    input.source.clear();
  }
  const std::vector<std::byte> bytes = serialize(values);
  return hash_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string hash_header(const std::filesystem::path& path, const SourceShard& shard) {
  std::string header(shard.header.data_begin, '\0');
  File::open_to_read(path).read_at(0, std::as_writable_bytes(std::span(header)));
  return hash_text(header);
}

}  // namespace

Fingerprint make_fingerprint(const Checkpoint& source,
                             const Recipe& recipe,
                             const Statistics& statistics,
                             const std::optional<std::filesystem::path>& compat_scales) {
  Fingerprint fingerprint;
  fingerprint["program"] = fmt::format("quantmill {}", program_version());
  fingerprint["recipe"] = nlohmann::json::parse(to_json(recipe)).dump();
  fingerprint["statistics"] = statistics.empty() ? "none" : hash_statistics(statistics);
  fingerprint["scales"] = compat_scales ? hash_file(*compat_scales) : "searched";
  fingerprint["config.json"] = hash_text(source.config_text());
  for (const SourceShard& shard : source.shards()) {
    fingerprint["source " + shard.file_name] =
        fmt::format("{} bytes, header {}",
                    shard.size_bytes,
                    hash_header(source.folder() / shard.file_name, shard));
  }
  return fingerprint;
}

Fingerprint with_times(Fingerprint fingerprint, const Checkpoint& source) {
  for (const SourceShard& shard : source.shards()) {
    std::error_code failure;
    const auto time = std::filesystem::last_write_time(source.folder() / shard.file_name, failure);
    if (failure) {
      throw Error(ErrorCode::kIo,
                  fmt::format("the source file {} was there when the job began, but not now: {}; "
                              "put it back as it was",
                              (source.folder() / shard.file_name).string(),
                              failure.message()));
    }
    fingerprint["source " + shard.file_name] += fmt::format(
        ", changed at {} ns", std::chrono::file_clock::to_sys(time).time_since_epoch().count());
  }
  return fingerprint;
}

std::string print_fingerprint(const Fingerprint& fingerprint) {
  return nlohmann::json(fingerprint).dump(1) + "\n";
}

Fingerprint parse_fingerprint(const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<Fingerprint>();
  } catch (const nlohmann::json::exception& failure) {
    throw Error(ErrorCode::kInput, fmt::format("not a fingerprint of a job: {}", failure.what()));
  }
}

std::string describe_difference(const Fingerprint& was, const Fingerprint& is) {
  for (const auto& [key, value] : was) {
    const auto found = is.find(key);
    if (found == is.end()) {
      return fmt::format("{} was {}, is not there now", key, value);
    }
    if (found->second != value) {
      return fmt::format("{} was {}, is {}", key, value, found->second);
    }
  }
  for (const auto& [key, value] : is) {
    if (!was.contains(key)) {
      return fmt::format("{} was not there, is {}", key, value);
    }
  }
  return "";
}

}  // namespace quantmill
