#include "pipeline/fingerprint.h"

#include <cstring>
#include <span>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/version.h"
#include "plan/qwix/jax_model.h"
#include "plan/recipe_json.h"
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

std::string describe_time(std::int64_t changed_ns) {
  return fmt::format(", changed at {} ns", changed_ns);
}

}  // namespace

Fingerprint make_fingerprint(const Checkpoint& source,
                             const Recipe& recipe,
                             const Statistics& statistics,
                             const FeedbackFactors* feedback,
                             const std::optional<std::filesystem::path>& given_scales) {
  Fingerprint fingerprint;
  fingerprint["program"] = fmt::format("quantmill {}", program_version());
  fingerprint["recipe"] = nlohmann::json::parse(to_json(recipe)).dump();
  fingerprint["statistics"] = statistics.empty() ? "none" : hash_statistics(statistics);
  if (feedback != nullptr) {
    fingerprint["Gram matrices"] = feedback->hash();
  }
  fingerprint["scales"] = given_scales ? hash_file(*given_scales) : "searched";
  if (recipe.layout == Layout::kQwix) {
    fingerprint["JAX model"] = hash_text(load_jax_model(recipe.jax_model));
  }
  fingerprint["config.json"] = hash_text(source.config_text());
  for (std::size_t index = 0; index < source.shards().size(); ++index) {
    const SourceShard& shard = source.shards()[index];
    fingerprint["source " + shard.file_name] = fmt::format(
        "{} bytes, header {}", shard.size_bytes, hash_text(source.stored_header(index)));
  }
  return fingerprint;
}

Fingerprint with_times(Fingerprint fingerprint, const Checkpoint& source) {
  for (const SourceShard& shard : source.shards()) {
    fingerprint["source " + shard.file_name] += describe_time(shard.changed_ns);
  }
  return fingerprint;
}

void check_agreement(const Communicator& world, const Fingerprint& fingerprint) {
  const std::string mine = print_fingerprint(fingerprint);
  const auto bytes = std::as_bytes(std::span(mine));
  const std::vector<std::byte> told = world.broadcast({bytes.begin(), bytes.end()}, 0);
  world.collectively([&] {
    const Fingerprint first =
        parse_fingerprint({reinterpret_cast<const char*>(told.data()), told.size()});
    const std::string difference = describe_difference(first, fingerprint);
    if (!difference.empty()) {
      throw Error(ErrorCode::kInput,
                  fmt::format("this rank does not see the job that rank 0 sees: {}; run it again "
                              "with the same program on all nodes, on files that stay as they are",
                              difference));
    }
  });
}

void check_unchanged(const Checkpoint& source) {
  for (const SourceShard& shard : source.shards()) {
    const std::filesystem::path path = source.folder() / shard.file_name;
    std::error_code failure;
    if (!std::filesystem::exists(path, failure)) {
      failure = failure ? failure : std::make_error_code(std::errc::no_such_file_or_directory);
      throw Error(ErrorCode::kIo,
                  fmt::format("the source file {} was there when the job began, but not now: {}; "
                              "put it back as it was",
                              path.string(),
                              failure.message()));
    }
    const File now = File::open_to_read(path);
    if (now.size_bytes() != shard.size_bytes || now.changed_ns() != shard.changed_ns) {
      throw Error(ErrorCode::kInput,
                  fmt::format("the source changed while the job ran: {} was {} bytes{}, is {} "
                              "bytes{}; run it again on files that stay as they are",
                              shard.file_name,
                              shard.size_bytes,
                              describe_time(shard.changed_ns),
                              now.size_bytes(),
                              describe_time(now.changed_ns())));
    }
  }
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
