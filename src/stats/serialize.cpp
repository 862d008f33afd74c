#include "stats/serialize.h"

#include <string>

#include "base/packing.h"

namespace quantmill {

std::vector<std::byte> serialize(const Statistics& statistics) {
  std::vector<std::byte> bytes;
  pack(bytes, statistics.size());
  for (const auto& [name, input] : statistics) {
    pack_sequence(bytes, name);
    pack_sequence(bytes, input.absmean);
    pack_sequence(bytes, input.sqmean);
    pack_sequence(bytes, input.absmax);
    pack(bytes, input.count);
    pack(bytes, input.has_count);
    pack(bytes, input.gram_tokens);
    pack(bytes, input.partition);
    pack_sequence(bytes, input.part_channels);
    pack_sequence(bytes, input.source);
  }
  return bytes;
}

Statistics deserialize_statistics(std::span<const std::byte> bytes) {
  Statistics statistics;
  Unpacker packed(bytes);
  for (auto left = packed.take<std::size_t>(); left > 0; --left) {
    InputStatistics& input = statistics[packed.take_sequence<std::string>()];
    input.absmean = packed.take_sequence<std::vector<double>>();
    input.sqmean = packed.take_sequence<std::vector<double>>();
    input.absmax = packed.take_sequence<std::vector<double>>();
    input.count = packed.take<std::uint64_t>();
    input.has_count = packed.take<bool>();
    input.gram_tokens = packed.take<std::uint64_t>();
    input.partition = packed.take<Partition>();
    input.part_channels = packed.take_sequence<std::vector<std::uint64_t>>();
    input.source = packed.take_sequence<std::string>();
  }
  return statistics;
}

}  // namespace quantmill
