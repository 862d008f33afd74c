#include "base/hash.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/file.h"

namespace quantmill {

namespace {

constexpr std::size_t kChunkBytes = std::size_t{4} << 20;

struct StateDeleter {
  void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
};

std::string hexadecimal(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

std::string hash_file(const std::filesystem::path& path, bool drops) {
  const File file = File::open_to_read(path);
  const std::uint64_t size = file.size_bytes();
  const std::unique_ptr<XXH3_state_t, StateDeleter> state(XXH3_createState());
  if (state == nullptr) {
    throw std::bad_alloc();
  }
  XXH3_128bits_reset(state.get());
  std::vector<std::byte> buffer(narrow<std::size_t>(std::min<std::uint64_t>(size, kChunkBytes)));
  for (std::uint64_t offset = 0; offset < size; offset += buffer.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(buffer.size(), size - offset);
    const std::span<std::byte> chunk(buffer.data(), narrow<std::size_t>(count));
    file.read_at(offset, chunk);
    if (drops) {
      file.drop_cached(offset, count);
    }
    XXH3_128bits_update(state.get(), chunk.data(), chunk.size());
  }
  return hexadecimal(XXH3_128bits_digest(state.get()));
}

std::string hash_text(std::string_view text) {
  return hexadecimal(XXH3_128bits(text.data(), text.size()));
}

std::uint64_t hash_bytes(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace quantmill
