#include "checkpoint/shard_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/json_events.h"

namespace quantmill {
namespace {

constexpr std::size_t kMaxListedNames = 5;

// What may hold weights in a model's folder; a folder that holds such files only is told from an
// empty one.
constexpr std::array<std::string_view, 11> kWeightExtensions = {".safetensors",
                                                                ".bin",
                                                                ".pt",
                                                                ".pth",
                                                                ".gguf",
                                                                ".h5",
                                                                ".msgpack",
                                                                ".onnx",
                                                                ".onnx_data",
                                                                ".ckpt",
                                                                ".ot"};

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

// "model-00003-of-00007.safetensors" is {"model-", 3, 7}.
struct ShardNumber {
  std::string prefix;
  std::size_t number = 0;
  std::size_t count = 0;
};

std::optional<ShardNumber> shard_number(std::string_view file_name) {
  constexpr std::string_view kShape = "00000-of-00000.safetensors";
  if (file_name.size() <= kShape.size()) {
    return std::nullopt;
  }
  const std::string_view tail = file_name.substr(file_name.size() - kShape.size());
  ShardNumber result{std::string(file_name.substr(0, file_name.size() - kShape.size())), 0, 0};
  const auto parse = [](std::string_view digits, std::size_t& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  if (tail.substr(5, 4) != "-of-" || tail.substr(14) != ".safetensors" ||
      !parse(tail.substr(0, 5), result.number) || !parse(tail.substr(9, 5), result.count)) {
    return std::nullopt;
  }
  return result;
}

// Without an index only the names tell whether shards are missing.
void check_shard_numbers(const std::vector<std::string>& file_names) {
  std::map<std::pair<std::string, std::size_t>, std::unordered_set<std::size_t>> families;
  for (const std::string& name : file_names) {
    if (const std::optional<ShardNumber> shard = shard_number(name)) {
      families[{shard->prefix, shard->count}].insert(shard->number);
    }
  }
  std::vector<std::string> missing;
  for (const auto& [family, numbers] : families) {
    for (std::size_t number = 1; number <= family.second; ++number) {
      if (!numbers.contains(number)) {
        missing.push_back(
            fmt::format("{}{:05}-of-{:05}.safetensors", family.first, number, family.second));
      }
    }
  }
  if (!missing.empty()) {
    fail(fmt::format(
        "{} of the shards that the others are numbered for are missing: {}; copy or download "
        "them",
        missing.size(),
        list_names(missing)));
  }
}

}  // namespace

std::string list_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxListedNames); ++i) {
    text += (i == 0 ? "" : ", ") + quote_name(names[i]);
  }
  if (names.size() > kMaxListedNames) {
    text += fmt::format(" and {} more", names.size() - kMaxListedNames);
  }
  return text;
}

bool is_weight_file(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  return std::find(kWeightExtensions.begin(), kWeightExtensions.end(), extension) !=
             kWeightExtensions.end() ||
         path.filename().string().ends_with(".bin.index.json") ||
         path.filename().string().ends_with(".safetensors.index.json");
}

bool is_hidden(const std::filesystem::path& path) {
  return std::any_of(path.begin(), path.end(), [](const std::filesystem::path& part) {
    return part.string().starts_with('.');
  });
}

std::vector<std::string> find_shards_without_index(const std::filesystem::path& folder) {
  std::vector<std::string> found;
  std::vector<std::string> other_weights;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::filesystem::path name = entry->path().filename();
    const std::string text = name.string();
    if (is_hidden(name)) {
      continue;
    }
    if (name.extension() == ".safetensors" && !text.starts_with("consolidated") &&
        !text.starts_with("adapter")) {
      found.push_back(text);
    } else if (is_weight_file(name)) {
      other_weights.push_back(text);
    }
  }
  if (error) {
    throw Error(ErrorCode::kIo, fmt::format("cannot list the folder: {}", error.message()));
  }
  std::sort(found.begin(), found.end());
  std::sort(other_weights.begin(), other_weights.end());
  if (found.empty()) {
    fail(other_weights.empty()
             ? std::string("no *.safetensors file in this folder; give the folder of a checkpoint")
             : fmt::format(
                   "no model*.safetensors file in this folder, only {}; convert the checkpoint to "
                   "safetensors (save_pretrained of transformers does it)",
                   list_names(other_weights)));
  }
  check_shard_numbers(found);
  return found;
}

void check_shards_exist(const std::filesystem::path& folder, const CheckpointIndex& index) {
  std::vector<std::string> missing;
  for (const std::string& name : index.file_names) {
    std::error_code error;
    if (!std::filesystem::exists(folder / name, error)) {
      missing.push_back(name);
    }
  }
  if (!missing.empty()) {
    fail(fmt::format("{} of the {} shards that {} names are missing: {}; copy or download them",
                     missing.size(),
                     index.file_names.size(),
                     kIndexFileName,
                     list_names(missing)));
  }
}

}  // namespace quantmill
