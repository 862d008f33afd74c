#pragma once

// Reads through io_uring, for io_bench: built with liburing (io_bench_ring.cpp) or without
// (io_bench_ring_absent.cpp).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace quantmill::bench {

extern const bool kHasRing;

// Reads pieces as large as the places, as many at a time as there are. `take` says where the next
// begins, false after the last; `look_at` gets each as it comes, and then its place is read into
// again.
void read_through_ring(int file,
                       const std::vector<std::span<std::byte>>& places,
                       const std::function<bool(std::uint64_t& offset)>& take,
                       const std::function<void(std::span<const std::byte>)>& look_at);

}  // namespace quantmill::bench
