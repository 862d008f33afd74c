#include "pipeline/load_statistics.h"

#include <fmt/format.h>

#include "base/error.h"

#include "stats/import.h"
#include "stats/serialize.h"
#include "stats/store.h"
#include "stats/torch_archive.h"

namespace quantmill {
namespace {

std::vector<std::filesystem::path> find_parts(const std::filesystem::path& where) {
  std::vector<std::filesystem::path> files = find_tensor_parallel_files(where);
  if (files.empty()) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "--stats {}: there is no such HDF5 file, and no {}.tp0.pt; record statistics first",
            where.string(),
            where.string()));
  }
  return files;
}

}  // namespace

Statistics load_statistics(const Communicator& world,
                           const std::filesystem::path& where,
                           const PartitionOf& partition) {
  Statistics statistics;
  if (std::filesystem::is_regular_file(where)) {
    std::vector<std::byte> bytes;
    world.collectively([&] {
      if (world.rank() == 0) {
        bytes = serialize(read_statistics(where));
      }
    });
    return deserialize_statistics(world.broadcast(std::move(bytes), 0));
  }
  std::vector<std::filesystem::path> files;
  world.collectively([&] { files = find_parts(where); });
  std::vector<Statistics> parts;
  const auto ranks = static_cast<std::size_t>(world.size());
  for (std::size_t first = 0; first < files.size(); first += ranks) {
    const std::size_t mine = first + static_cast<std::size_t>(world.rank());
    std::vector<std::byte> bytes;
    world.collectively([&] {
      if (mine < files.size()) {
        bytes = serialize(read_torch_statistics(files[mine]));
      }
    });
    for (const std::vector<std::byte>& part : world.gather_all(bytes)) {
      if (!part.empty()) {
        parts.push_back(deserialize_statistics(part));
      }
    }
  }
  world.collectively([&] { statistics = merge_tensor_parallel(parts, partition); });
  return statistics;
}

Statistics load_statistics(const std::filesystem::path& where, const PartitionOf& partition) {
  if (std::filesystem::is_regular_file(where)) {
    return read_statistics(where);
  }
  return import_tensor_parallel(where, partition);
}

}  // namespace quantmill
