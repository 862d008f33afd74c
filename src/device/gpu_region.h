#pragma once

// Which parts of a region of memory are taken: addresses only, the memory itself is never touched.

#include <cstddef>
#include <map>
#include <optional>

namespace quantmill {

// First fit; neighbours that are free become one. Not thread-safe.
class GpuRegion {
 public:
  static constexpr std::size_t kAlignment = 256;

  explicit GpuRegion(std::size_t bytes = 0);

  // The offset of so many bytes, a multiple of kAlignment; nothing if no gap is large enough. 0
  // bytes take as much as 1.
  std::optional<std::size_t> take(std::size_t bytes);

  // What take() returned.
  void release(std::size_t offset);

  [[nodiscard]] std::size_t free_bytes() const;
  [[nodiscard]] std::size_t largest_gap() const;

 private:
  std::map<std::size_t, std::size_t> gaps_;   // offset -> bytes
  std::map<std::size_t, std::size_t> taken_;  // offset -> bytes
};

}  // namespace quantmill
