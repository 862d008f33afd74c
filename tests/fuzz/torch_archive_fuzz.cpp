// Any bytes as a statistics file of torch.save: refused, or statistics that pass every check.
// Bytes that do not begin as a zip archive are put into one, since mutations would hardly ever keep
// its checksums: pickle size (2 bytes), pickle, storage "1" size (1 byte), storage "1", and storage
// "0" to the end.

#include <span>
#include <string>
#include <string_view>

#include "fuzz.h"
#include "stats/torch_archive.h"

namespace {

// CRC-32 as zip wants it, bit by bit: independent of the library under test.
std::uint32_t crc32(std::string_view data) {
  std::uint32_t crc = 0xffffffffU;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xedb88320U : 0U);
    }
  }
  return ~crc;
}

void put(std::string& out, std::uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) {
    out += static_cast<char>(value >> (8 * i) & 0xffU);
  }
}

// A stored archive (PKZIP APPNOTE 4.3.7, 4.3.12, 4.3.16).
class ArchiveBuilder {
 public:
  void add(std::string_view name, std::string_view data) {
    const auto offset = static_cast<std::uint32_t>(bytes_.size());
    std::string common;
    put(common, 20, 2);   // version needed
    common.append(8, 0);  // flags, stored, time, date
    put(common, crc32(data), 4);
    put(common, static_cast<std::uint32_t>(data.size()), 4);
    put(common, static_cast<std::uint32_t>(data.size()), 4);
    put(common, static_cast<std::uint32_t>(name.size()), 2);
    put(common, 0, 2);  // extra field
    bytes_.append("PK\x03\x04").append(common).append(name).append(data);
    directory_.append("PK\x01\x02");
    put(directory_, 20, 2);  // version made by
    directory_ += common;
    put(directory_, 0, 4);  // comment, disk
    put(directory_, 0, 2);  // internal attributes
    put(directory_, 0, 4);  // external attributes
    put(directory_, offset, 4);
    directory_.append(name);
    ++num_entries_;
  }

  std::string finish() {
    const auto offset = static_cast<std::uint32_t>(bytes_.size());
    bytes_ += directory_;
    bytes_.append("PK\x05\x06");
    put(bytes_, 0, 4);  // disks
    put(bytes_, num_entries_, 2);
    put(bytes_, num_entries_, 2);
    put(bytes_, static_cast<std::uint32_t>(directory_.size()), 4);
    put(bytes_, offset, 4);
    put(bytes_, 0, 2);  // comment
    return bytes_;
  }

 private:
  std::string bytes_;
  std::string directory_;
  std::uint32_t num_entries_ = 0;
};

std::string make_archive(std::string_view input) {
  const auto take = [&input](std::size_t size) {
    const std::string_view taken = input.substr(0, size);
    input.remove_prefix(taken.size());
    return taken;
  };
  const auto take_size = [&](std::size_t bytes) {
    std::size_t size = 0;
    for (const char c : take(bytes)) {
      size = size << 8 | static_cast<unsigned char>(c);
    }
    return size;
  };
  ArchiveBuilder archive;
  archive.add("a/data.pkl", take(take_size(2)));
  archive.add("a/data/1", take(take_size(1)));
  archive.add("a/data/0", input);
  return archive.finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  const std::string_view input = fuzz::as_text(data, size);
  const std::string file = input.starts_with("PK") ? std::string(input) : make_archive(input);
  fuzz::only_input_errors([&] {
    const Statistics statistics = parse_torch_statistics(std::as_bytes(std::span(file)), "fuzz");
    fuzz::require(!statistics.empty(), "what was read has inputs");
    check_statistics(statistics);
  });
  return 0;
}
