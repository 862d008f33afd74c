#pragma once

// Which pages of source and output a job lets the system forget. The page cache is welcome to what
// fits: phases read the source again, and hashing the output. What does not fit would push
// everything else out of it, and be gone by the time it is read again.

#include <cstdint>

namespace quantmill {

// kDrop: everything at once, though it may be read again. kAuto: what is too large to stay.
enum class PageCache { kAuto, kKeep, kDrop };

// None is set, the first or more.
struct PageDrops {
  bool when_done = false;       // source once the last phase has read it, output once it is hashed
  bool source_at_once = false;  // whichever phase reads it
  bool output_at_once = false;  // once it is on the disk
};

// kAuto drops when done if source and output together take more than half of the memory, and at
// once what takes more than that alone. Bytes and memory: of one node. Pure.
PageDrops page_drops(PageCache wanted,
                     std::uint64_t source_bytes,
                     std::uint64_t output_bytes,
                     std::uint64_t memory_bytes);

// Of this machine.
std::uint64_t physical_memory_bytes();

}  // namespace quantmill
