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

// One table, read by rank 0 for all.
Statistics read_once(const Communicator& world, const std::function<Statistics()>& read) {
  std::vector<std::byte> bytes;
  world.collectively([&] {
    if (world.rank() == 0) {
      bytes = serialize(read());
    }
  });
  return deserialize_statistics(world.broadcast(std::move(bytes), 0));
}

}  // namespace

Statistics load_statistics(const Communicator& world,
                           const std::optional<DeviceIdentity>& device,
                           const Log& log,
                           const std::filesystem::path& where,
                           const PartitionOf& partition) {
  if (std::filesystem::is_regular_file(where)) {
    return read_once(world, [&] { return read_statistics(where); });
  }
  std::vector<std::filesystem::path> files;
  world.collectively([&] { files = find_parts(where); });
  std::vector<Statistics> parts;
  if (files.size() == 1) {
    parts.push_back(read_once(world, [&] { return read_torch_statistics(files.front()); }));
  } else {
    PartExchange exchange(world, device);
    if (world.size() > 1) {
      log.info(fmt::format("statistics: merged {}", exchange.describe()));
    }
    parts = gather_parts(exchange, files.size(), [&](std::size_t part) {
      return read_torch_statistics(files[part]);
    });
  }
  Statistics statistics;
  world.collectively([&] { statistics = merge_tensor_parallel(parts, partition); });
  return statistics;
}

Statistics load_statistics(const std::filesystem::path& where, const PartitionOf& partition) {
  if (std::filesystem::is_regular_file(where)) {
    return read_statistics(where);
  }
  return import_tensor_parallel(where, partition);
}

std::vector<Statistics> gather_parts(PartExchange& exchange,
                                     std::size_t num_parts,
                                     const std::function<Statistics(std::size_t part)>& read) {
  const Communicator& world = exchange.world();
  std::vector<Statistics> parts;
  const auto ranks = static_cast<std::size_t>(world.size());
  for (std::size_t first = 0; first < num_parts; first += ranks) {
    const std::size_t mine = first + static_cast<std::size_t>(world.rank());
    std::vector<std::byte> bytes;  // none for a rank without a part; a part without inputs has some
    world.collectively([&] {
      if (mine < num_parts) {
        bytes = serialize(read(mine));
      }
    });
    for (const std::vector<std::byte>& part : exchange.gather_all(bytes)) {
      if (!part.empty()) {
        parts.push_back(deserialize_statistics(part));
      }
    }
  }
  return parts;
}

}  // namespace quantmill
