#include "checkpoint/reader.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "checkpoint/index.h"
#include "checkpoint/json_events.h"
#include "checkpoint/shard_files.h"

namespace quantmill {

namespace {

// A model of 90,000 tensors has an index of 10 MB.
constexpr std::uint64_t kMaxIndexBytes = 256'000'000;
constexpr std::uint64_t kMaxConfigBytes = 64'000'000;
// Smaller pieces are of rows that lie apart: the system has read what is between them, too.
constexpr std::uint64_t kLeastDroppedBytes = std::uint64_t{256} << 10;
constexpr std::uint64_t kMostLittleBytes = std::uint64_t{16} << 20;
constexpr std::size_t kMaxNameBytes = 4096;  // of a tensor; names go into messages and configs

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

}  // namespace

SafetensorsHeader read_safetensors_header(const File& file) {
  return with_context(file.path().string(), [&] {
    const std::uint64_t file_bytes = file.size_bytes();
    std::array<std::byte, 8> prefix{};
    if (file_bytes < prefix.size()) {
      fail(fmt::format(
          "the file has {} bytes, too few for a safetensors file; it is cut short, so copy or "
          "download it again",
          file_bytes));
    }
    file.read_at(0, prefix);
    const auto length = load_little_endian<std::uint64_t>(prefix);
    if (std::string_view(reinterpret_cast<const char*>(prefix.data()), prefix.size()) ==
        "version ") {
      fail("this is a pointer of Git LFS, not the file itself; fetch it with 'git lfs pull'");
    }
    if (length > kMaxHeaderBytes) {
      fail(fmt::format(
          "the header is said to have {} bytes, but the format allows {}; this is not a "
          "safetensors file",
          length,
          kMaxHeaderBytes));
    }
    if (length > file_bytes - prefix.size()) {
      fail(fmt::format(
          "the header is said to have {} bytes, but the file has only {}; it is cut short, so "
          "copy or download it again",
          length,
          file_bytes));
    }
    std::string json(narrow<std::size_t>(length), '\0');
    file.read_at(prefix.size(), std::as_writable_bytes(std::span(json)));
    return parse_safetensors_header(json, file_bytes);
  });
}

void Checkpoint::add_shard(const std::string& file_name) {
  File file = File::open_to_read(folder_ / file_name);
  const std::int64_t changed_ns = file.changed_ns();  // before anything is read: later changes show
  SafetensorsHeader header = read_safetensors_header(file);
  const std::size_t shard = shards_.size();
  for (TensorEntry& entry : header.tensors) {
    if (entry.name.size() > kMaxNameBytes) {
      fail(fmt::format("{}: the name of tensor {} has {} bytes; names of up to {} are read",
                       file_name,
                       quote_name(entry.name),
                       entry.name.size(),
                       kMaxNameBytes));
    }
    tensors_.push_back({std::move(entry), shard});
  }
  shards_.push_back(
      {file_name, std::move(header.metadata), header.data_begin, file.size_bytes(), changed_ns});
  files_.push_back(std::move(file));
}

void Checkpoint::sort_names() {
  tensors_.shrink_to_fit();
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  const auto name_of = [&](std::size_t index) -> const std::string& {
    return tensors_[index].entry.name;
  };
  std::ranges::sort(by_name_, [&](std::size_t left, std::size_t right) {
    const int order = name_of(left).compare(name_of(right));
    return order < 0 || (order == 0 && left < right);
  });
  const auto twice = std::ranges::adjacent_find(by_name_, {}, name_of);
  if (twice != by_name_.end()) {
    fail(fmt::format(
        "tensor {} is in both {} and {}; the folder mixes two checkpoints, so remove one",
        quote_name(name_of(*twice)),
        shards_[tensors_[*twice].shard].file_name,
        shards_[tensors_[*std::next(twice)].shard].file_name));
  }
}

void Checkpoint::check_against_index(const CheckpointIndex& index) const {
  std::vector<std::string> lacking;
  std::unordered_set<std::string_view> indexed;
  indexed.reserve(index.weight_map.size());
  for (const auto& [tensor, file_name] : index.weight_map) {
    indexed.insert(tensor);
    const std::optional<std::size_t> found = find(tensor);
    if (!found || shards_[tensors_[*found].shard].file_name != file_name) {
      lacking.push_back(fmt::format("{} in {}", tensor, file_name));
    }
  }
  if (!lacking.empty()) {
    fail(
        fmt::format("{} places {} tensors where they are not: {}; the index and the shards are of "
                    "different checkpoints, so copy or download all of one again",
                    kIndexFileName,
                    lacking.size(),
                    list_names(lacking)));
  }
  std::vector<std::string> surplus;
  for (const SourceTensor& tensor : tensors_) {
    if (!indexed.contains(tensor.entry.name)) {
      surplus.push_back(
          fmt::format("{} in {}", tensor.entry.name, shards_[tensor.shard].file_name));
    }
  }
  if (!surplus.empty()) {
    fail(fmt::format(
        "{} does not name {} tensors that its shards hold: {}; the index and the shards are of "
        "different checkpoints, so copy or download all of one again",
        kIndexFileName,
        surplus.size(),
        list_names(surplus)));
  }
}

Checkpoint Checkpoint::open(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    fail(
        fmt::format("checkpoint {} {}; give the folder of a checkpoint",
                    folder.string(),
                    std::filesystem::exists(folder, error) ? "is not a folder" : "does not exist"));
  }
  return with_context("checkpoint " + folder.string(), [&] {
    Checkpoint checkpoint;
    checkpoint.folder_ = folder;
    const std::filesystem::path index_path = folder / kIndexFileName;
    if (!std::filesystem::exists(index_path, error)) {
      for (const std::string& name : find_shards_without_index(folder)) {
        checkpoint.add_shard(name);
      }
      checkpoint.sort_names();
      return checkpoint;
    }
    const CheckpointIndex index = with_context(kIndexFileName, [&] {
      return parse_checkpoint_index(read_text_file(index_path, kMaxIndexBytes));
    });
    check_shards_exist(folder, index);
    for (const std::string& name : index.file_names) {
      checkpoint.add_shard(name);
    }
    checkpoint.sort_names();
    checkpoint.check_against_index(index);
    return checkpoint;
  });
}

Checkpoint Checkpoint::open_file(const std::filesystem::path& file) {
  Checkpoint checkpoint;
  checkpoint.folder_ = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  checkpoint.add_shard(file.filename().string());
  checkpoint.sort_names();
  return checkpoint;
}

std::optional<std::size_t> Checkpoint::find(const std::string& name) const {
  const auto name_of = [&](std::size_t index) -> const std::string& {
    return tensors_[index].entry.name;
  };
  const auto found = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return found == by_name_.end() || name_of(*found) != name ? std::nullopt : std::optional(*found);
}

void Checkpoint::read(const SourceTensor& tensor,
                      std::uint64_t offset,
                      std::span<std::byte> out) const {
  const std::uint64_t size = tensor.entry.size_bytes();
  check_invariant(tensor.shard < files_.size() && offset <= size && out.size() <= size - offset,
                  "a read outside a tensor");
  const std::uint64_t begin = shards_[tensor.shard].data_begin + tensor.entry.begin + offset;
  with_context("tensor " + quote_name(tensor.entry.name),
               [&] { files_[tensor.shard].read_at(begin, out); });
  drop_read(tensor.shard, begin, out.size());
}

void Checkpoint::expect_read(const SourceTensor& tensor,
                             std::uint64_t offset,
                             std::uint64_t size_bytes) const {
  const std::uint64_t begin = shards_[tensor.shard].data_begin + tensor.entry.begin + offset;
  files_[tensor.shard].expect_read(begin, size_bytes);
}

void Checkpoint::drop_what_is_read() {
  little_ = std::make_unique<std::atomic<std::uint64_t>>(0);
  drop_all();
}

void Checkpoint::drop_all() const {
  for (const File& file : files_) {
    file.drop_cached(0, 0);
  }
}

void Checkpoint::drop_read(std::size_t shard,
                           std::uint64_t offset,
                           std::uint64_t size_bytes) const {
  if (little_ == nullptr) {
    return;
  }
  if (size_bytes >= kLeastDroppedBytes) {
    files_[shard].drop_cached(offset, size_bytes);
  } else if ((*little_ += size_bytes) >= kMostLittleBytes) {
    *little_ = 0;
    drop_all();
  }
}

std::string Checkpoint::stored_header(std::size_t shard) const {
  std::string header(shards_.at(shard).data_begin, '\0');
  files_[shard].read_at(0, std::as_writable_bytes(std::span(header)));
  return header;
}

std::string Checkpoint::config_text() const {
  const std::filesystem::path path = folder_ / "config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    fail(fmt::format("checkpoint {} has no config.json; give the folder of a whole checkpoint",
                     folder_.string()));
  }
  return read_text_file(path, kMaxConfigBytes);
}

std::vector<std::filesystem::path> Checkpoint::files_beside(bool is_weights) const {
  std::vector<std::filesystem::path> result;
  for (const std::filesystem::path& path : list_files(folder_)) {
    const bool is_own = path == kIndexFileName ||
                        std::any_of(shards_.begin(), shards_.end(), [&](const SourceShard& shard) {
                          return path == shard.file_name;
                        });
    if (!is_own && !is_hidden(path) && is_weight_file(path) == is_weights) {
      result.push_back(path);
    }
  }
  return result;
}

std::vector<std::filesystem::path> Checkpoint::other_files() const {
  return files_beside(false);
}

std::vector<std::filesystem::path> Checkpoint::ignored_files() const {
  return files_beside(true);
}

}  // namespace quantmill
