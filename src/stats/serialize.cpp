#include "stats/serialize.h"

#include "base/packing.h"

namespace quantmill {
namespace {

// Every field, for a Packer or an Unpacker.
template <typename Archive, typename Table>
void transfer(Archive& archive, Table& statistics) {
  archive.map(statistics, [](Archive& fields, auto& input) {
    fields.sequence(input.absmean);
    fields.sequence(input.sqmean);
    fields.sequence(input.absmax);
    fields.value(input.count);
    fields.value(input.has_count);
    fields.value(input.gram_tokens);
    fields.enumeration(input.partition, Partition::kRow);
    fields.sequence(input.part_channels);
    fields.sequence(input.source);
  });
}

}  // namespace

std::vector<std::byte> serialize(const Statistics& statistics) {
  Packer packer;
  transfer(packer, statistics);
  return packer.take();
}

Statistics deserialize_statistics(std::span<const std::byte> bytes) {
  Statistics statistics;
  Unpacker unpacker(bytes);
  transfer(unpacker, statistics);
  return statistics;
}

}  // namespace quantmill
