#pragma once

// A checkpoint folder opened for reading: one file, shards with an index, or shards without one.
// All headers are checked when it is opened; tensors are read by byte range, never whole unless
// asked.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"

namespace quantmill {

struct SourceTensor {
  TensorEntry entry;
  std::size_t shard = 0;  // index into Checkpoint::shards()
};

struct SourceShard {
  std::string file_name;  // relative to the folder
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // file offset of the data section
  std::uint64_t size_bytes = 0;
  std::int64_t changed_ns = 0;  // of the file as opened: File::changed_ns
};

// The header of a safetensors file. Errors: as parse_safetensors_header, and a file that is too
// short for its header.
SafetensorsHeader read_safetensors_header(const File& file);

class Checkpoint {
 public:
  // `folder` holds model.safetensors.index.json and its shards, or *.safetensors without an index
  // (all of them, sorted by name; `consolidated*.safetensors` and `adapter*.safetensors` are passed
  // over). Links are followed. Errors, kInput: no folder, no safetensors file (says so if there are
  // only *.bin), a shard that the index or the numbering of the others asks for is missing, a
  // tensor of the index that its shard lacks or the reverse, a name in two shards or of more than
  // 4096 bytes, a header that does not parse; each names the file. kIo: unreadable.
  static Checkpoint open(const std::filesystem::path& folder);
  // One .safetensors file of any name; folder() is where it lies.
  static Checkpoint open_file(const std::filesystem::path& file);

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }

  [[nodiscard]] const std::vector<SourceShard>& shards() const noexcept { return shards_; }

  // In order of shard, then of position in it.
  [[nodiscard]] const std::vector<SourceTensor>& tensors() const noexcept { return tensors_; }

  // The tensor's index in tensors(), or nothing.
  [[nodiscard]] std::optional<std::size_t> find(const std::string& name) const;

  // Fills `out` with the tensor's bytes from `offset`. Thread-safe. kIo if the file is shorter by
  // now.
  void read(const SourceTensor& tensor, std::uint64_t offset, std::span<std::byte> out) const;

  // Asks the system to bring a part of the tensor into memory while the caller does something else
  // (File::expect_read). Thread-safe.
  void expect_read(const SourceTensor& tensor,
                   std::uint64_t offset,
                   std::uint64_t size_bytes) const;

  // Lets the system forget what of the shards is in memory (File::drop_cached), and from now on
  // also what read() has read; after little pieces, whose neighbours are still to be read, now and
  // then everything. Not while others read.
  void drop_what_is_read();

  // The shard's first data_begin bytes as they are stored. kIo.
  [[nodiscard]] std::string stored_header(std::size_t shard) const;

  // The text of config.json. kInput if there is none.
  [[nodiscard]] std::string config_text() const;

  // Files beside the weights, relative and sorted: everything but the shards, the index, other
  // weight files
  // (*.safetensors, *.bin, *.pt, *.pth, *.gguf, *.h5, *.msgpack, *.onnx, *.onnx_data, *.ckpt, *.ot,
  // and indexes of such) and hidden files and folders.
  [[nodiscard]] std::vector<std::filesystem::path> other_files() const;
  // Weight files, and indexes of such, that are not part of this checkpoint and so are left behind,
  // relative and sorted.
  [[nodiscard]] std::vector<std::filesystem::path> ignored_files() const;

 private:
  Checkpoint() = default;

  void drop_all() const;
  void drop_read(std::size_t shard, std::uint64_t offset, std::uint64_t size_bytes) const;

  void add_shard(const std::string& file_name);
  void sort_names();
  void check_against_index(const CheckpointIndex& index) const;
  [[nodiscard]] std::vector<std::filesystem::path> files_beside(bool is_weights) const;

  std::filesystem::path folder_;
  std::vector<SourceShard> shards_;
  std::vector<File> files_;  // one per shard
  std::vector<SourceTensor> tensors_;
  std::vector<std::size_t> by_name_;  // indices of tensors_, by name
  // Bytes that were read in little pieces since pages were dropped. Null: none are.
  std::unique_ptr<std::atomic<std::uint64_t>> little_;
};

}  // namespace quantmill
