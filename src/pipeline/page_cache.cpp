#include "pipeline/page_cache.h"

#include <unistd.h>

namespace quantmill {

PageDrops page_drops(PageCache wanted,
                     std::uint64_t source_bytes,
                     std::uint64_t output_bytes,
                     std::uint64_t memory_bytes) {
  const std::uint64_t room = memory_bytes / 2;
  switch (wanted) {
    case PageCache::kAuto:
      return {source_bytes + output_bytes > room, source_bytes > room, output_bytes > room};
    case PageCache::kKeep:
      return {};
    case PageCache::kDrop:
      return {true, true, true};
  }
  return {};
}

std::uint64_t physical_memory_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGE_SIZE));
}

}  // namespace quantmill
