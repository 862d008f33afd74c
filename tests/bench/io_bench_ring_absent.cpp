#include "tests/bench/io_bench_ring.h"

namespace quantmill::bench {

const bool kHasRing = false;

void read_through_ring(int,
                       const std::vector<std::span<std::byte>>&,
                       const std::function<bool(std::uint64_t& offset)>&,
                       const std::function<void(std::span<const std::byte>)>&) {}

}  // namespace quantmill::bench
