#include "stats/serialize.h"

#include <cstring>
#include <string>
#include <type_traits>

#include "base/checked.h"
#include "base/error.h"

namespace quantmill {
namespace {

template <typename T>
void put(std::vector<std::byte>& bytes, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::size_t old = bytes.size();
  bytes.resize(old + sizeof(T));
  std::memcpy(bytes.data() + old, &value, sizeof(T));
}

// A length, then the elements of a string or a vector of numbers.
template <typename Sequence>
void put_sequence(std::vector<std::byte>& bytes, const Sequence& values) {
  put(bytes, values.size());
  const std::size_t old = bytes.size();
  const std::size_t size_bytes = values.size() * sizeof(values[0]);
  bytes.resize(old + size_bytes);
  if (size_bytes != 0) {
    copy_bytes(bytes.data() + old, values.data(), size_bytes);
  }
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  template <typename Sequence>
  Sequence get_sequence() {
    Sequence values;
    values.resize(get<std::size_t>());
    const std::size_t size_bytes = values.size() * sizeof(values[0]);
    if (size_bytes != 0) {
      copy_bytes(values.data(), take(size_bytes).data(), size_bytes);
    }
    return values;
  }

 private:
  std::span<const std::byte> take(std::size_t size_bytes) {
    check_invariant(size_bytes <= bytes_.size(), "statistics from another rank are cut short");
    const auto taken = bytes_.first(size_bytes);
    bytes_ = bytes_.subspan(size_bytes);
    return taken;
  }

  std::span<const std::byte> bytes_;
};

}  // namespace

std::vector<std::byte> serialize(const Statistics& statistics) {
  std::vector<std::byte> bytes;
  put(bytes, statistics.size());
  for (const auto& [name, input] : statistics) {
    put_sequence(bytes, name);
    put_sequence(bytes, input.absmean);
    put_sequence(bytes, input.sqmean);
    put_sequence(bytes, input.absmax);
    put(bytes, input.count);
    put(bytes, input.has_count);
    put(bytes, input.gram_tokens);
    put(bytes, input.partition);
    put_sequence(bytes, input.part_channels);
    put_sequence(bytes, input.source);
  }
  return bytes;
}

Statistics deserialize_statistics(std::span<const std::byte> bytes) {
  Statistics statistics;
  Reader reader(bytes);
  for (auto left = reader.get<std::size_t>(); left > 0; --left) {
    InputStatistics& input = statistics[reader.get_sequence<std::string>()];
    input.absmean = reader.get_sequence<std::vector<double>>();
    input.sqmean = reader.get_sequence<std::vector<double>>();
    input.absmax = reader.get_sequence<std::vector<double>>();
    input.count = reader.get<std::uint64_t>();
    input.has_count = reader.get<bool>();
    input.gram_tokens = reader.get<std::uint64_t>();
    input.partition = reader.get<Partition>();
    input.part_channels = reader.get_sequence<std::vector<std::uint64_t>>();
    input.source = reader.get_sequence<std::string>();
  }
  return statistics;
}

}  // namespace quantmill
