#include "tests/bench/io_bench_ring.h"

#include <liburing.h>

#include <system_error>

namespace quantmill::bench {
namespace {

int checked(int result, const char* what) {
  if (result < 0) {
    throw std::system_error(-result, std::generic_category(), what);
  }
  return result;
}

}  // namespace

const bool kHasRing = true;

void read_through_ring(int file,
                       const std::vector<std::span<std::byte>>& places,
                       const std::function<bool(std::uint64_t& offset)>& take,
                       const std::function<void(std::span<const std::byte>)>& look_at) {
  ::io_uring ring{};
  checked(::io_uring_queue_init(static_cast<unsigned>(places.size()), &ring, 0), "io_uring");
  std::uint64_t under_way = 0;
  const auto submit = [&](std::size_t slot) {
    std::uint64_t offset = 0;
    if (take(offset)) {
      ::io_uring_sqe* const entry = ::io_uring_get_sqe(&ring);
      ::io_uring_prep_read(
          entry, file, places[slot].data(), static_cast<unsigned>(places[slot].size()), offset);
      entry->user_data = slot;
      checked(::io_uring_submit(&ring), "io_uring_submit");
      ++under_way;
    }
  };
  for (std::size_t slot = 0; slot < places.size(); ++slot) {
    submit(slot);
  }
  for (; under_way > 0; --under_way) {
    ::io_uring_cqe* done = nullptr;
    checked(::io_uring_wait_cqe(&ring, &done), "io_uring_wait_cqe");
    const std::size_t slot = done->user_data;
    const auto count = static_cast<std::size_t>(checked(done->res, "read"));
    ::io_uring_cqe_seen(&ring, done);
    if (count != places[slot].size()) {
      throw std::system_error(EIO, std::generic_category(), "a read through io_uring came short");
    }
    look_at(places[slot]);
    submit(slot);
  }
  ::io_uring_queue_exit(&ring);
}

}  // namespace quantmill::bench
