// Reads or writes one file once, by one method, in pieces as the job takes them: what disk.py
// calls.
//
//   io_bench METHOD FILE GIGABYTES PIECE_MIB THREADS cold|warm
//
// Prints a line of JSON: seconds, CPU seconds of this process (what kernel threads write back is
// not in them), MB of the file that are in the page cache afterwards, and for writing the most that
// was dirty or being written in the whole system; or {"left_out": why}. Pieces are handed to
// threads in order, and every byte that is read is also added up, as a job would look at it. What
// is written is waited for by fsync. "cold": the file's pages are dropped before.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/bench/io_bench_ring.h"

namespace quantmill::bench {
namespace {

constexpr std::size_t kPage = 4096;                          // what O_DIRECT wants a multiple of
constexpr std::uint64_t kAdvice = std::uint64_t{128} << 10;  // as File::expect_read
constexpr int kUncached = 0x00000080;                        // RWF_DONTCACHE, Linux 6.14

struct LeftOut : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// 0 or more, or an exception.
std::uint64_t checked(std::int64_t result, const char* what) {
  if (result < 0) {
    throw std::system_error(errno, std::generic_category(), what);
  }
  return static_cast<std::uint64_t>(result);
}

// Memory that O_DIRECT can read into.
class Buffer {
 public:
  explicit Buffer(std::size_t size)
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(kPage, size)), &std::free), size_(size) {
    std::memset(bytes_.get(), 0x5a, size);
  }

  [[nodiscard]] std::span<std::byte> span() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> bytes_;
  std::size_t size_;
};

// The file, and the pieces that are still to do.
struct Work {
  int file = -1;
  std::uint64_t size = 0;
  std::uint64_t piece = 0;
  int threads = 1;
  std::atomic<std::uint64_t> next = 0;
  std::atomic<std::uint64_t> sum = 0;  // of what was read: so that reading is not left out

  // Where the next piece begins; false after the last.
  bool take(std::uint64_t& offset) {
    offset = next.fetch_add(piece);
    return offset < size;
  }

  void look_at(std::span<const std::byte> bytes) {
    const auto* const words = reinterpret_cast<const std::uint64_t*>(bytes.data());
    sum += std::accumulate(words, words + bytes.size() / sizeof *words, std::uint64_t{0});
  }
};

void advise(int file, std::uint64_t offset, std::uint64_t size, int advice) {
  (void)::posix_fadvise(file, static_cast<off_t>(offset), static_cast<off_t>(size), advice);
}

void read_piece(int file, std::span<std::byte> bytes, std::uint64_t offset, int flags = 0) {
  while (!bytes.empty()) {
    const ::iovec part{bytes.data(), bytes.size()};
    const std::int64_t count = ::preadv2(file, &part, 1, static_cast<off_t>(offset), flags);
    if (count < 0 && errno == EOPNOTSUPP) {
      throw LeftOut("this kernel or file system has no RWF_DONTCACHE");
    }
    const std::uint64_t done = checked(count, "read");
    offset += done;
    bytes = bytes.subspan(done);
  }
}

void write_piece(int file, std::span<const std::byte> bytes, std::uint64_t offset, int flags = 0) {
  while (!bytes.empty()) {
    const ::iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    const std::int64_t count = ::pwritev2(file, &part, 1, static_cast<off_t>(offset), flags);
    if (count < 0 && errno == EOPNOTSUPP) {
      throw LeftOut("this kernel or file system has no RWF_DONTCACHE");
    }
    const std::uint64_t done = checked(count, "write");
    offset += done;
    bytes = bytes.subspan(done);
  }
}

enum class Advice { kNone, kAhead, kAheadAtOnce, kBehind };

// kAhead: as the job, which asks for what is to be read a round of all threads later.
void read_by_pread(Work& work, Advice advice, int flags = 0) {
  const Buffer buffer(work.piece);
  const std::uint64_t round = work.piece * static_cast<std::uint64_t>(work.threads);
  const std::uint64_t advised = advice == Advice::kAhead         ? kAdvice
                                : advice == Advice::kAheadAtOnce ? work.piece
                                                                 : 0;
  for (std::uint64_t offset = 0; work.take(offset);) {
    for (std::uint64_t done = 0; advised > 0 && done < work.piece; done += advised) {
      advise(work.file, offset + round + done, advised, POSIX_FADV_WILLNEED);
    }
    read_piece(work.file, buffer.span(), offset, flags);
    work.look_at(buffer.span());
    if (advice == Advice::kBehind) {
      advise(work.file, offset, work.piece, POSIX_FADV_DONTNEED);
    }
  }
}

// `advice`: of madvise, for the whole file, or MADV_POPULATE_READ for each piece.
void read_by_mmap(Work& work, int advice, bool copies) {
  void* const address = ::mmap(nullptr, work.size, PROT_READ, MAP_SHARED, work.file, 0);
  if (address == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "mmap");
  }
  const std::span mapped(static_cast<std::byte*>(address), work.size);
  const Buffer buffer(copies ? work.piece : kPage);
  if (advice != MADV_POPULATE_READ) {
    (void)::madvise(address, work.size, advice);
  }
  for (std::uint64_t offset = 0; work.take(offset);) {
    const auto piece = mapped.subspan(offset, work.piece);
    if (advice == MADV_POPULATE_READ) {
      checked(::madvise(piece.data(), piece.size(), advice), "MADV_POPULATE_READ");
    }
    if (copies) {
      std::ranges::copy(piece, buffer.span().begin());
      work.look_at(buffer.span());
    } else {
      work.look_at(piece);
    }
  }
  ::munmap(address, work.size);
}

void read_by_ring(Work& work) {
  if (!kHasRing) {
    throw LeftOut("built without liburing");
  }
  constexpr unsigned kDepth = 4;
  std::vector<Buffer> buffers;
  std::vector<std::span<std::byte>> places;
  for (unsigned slot = 0; slot < kDepth; ++slot) {
    places.push_back(buffers.emplace_back(work.piece).span());
  }
  read_through_ring(
      work.file,
      places,
      [&](std::uint64_t& offset) { return work.take(offset); },
      [&](std::span<const std::byte> bytes) { work.look_at(bytes); });
}

enum class Behind { kNothing, kBegin, kDrop };

void write_by_pwrite(Work& work, Behind behind, int flags = 0) {
  const Buffer buffer(work.piece);
  std::uint64_t last = work.size;
  for (std::uint64_t offset = 0; work.take(offset); last = offset) {
    write_piece(work.file, buffer.span(), offset, flags);
    const auto start = static_cast<off_t>(offset);
    const auto length = static_cast<off_t>(work.piece);
    if (behind != Behind::kNothing) {
      (void)::sync_file_range(work.file, start, length, SYNC_FILE_RANGE_WRITE);
    }
    if (behind == Behind::kDrop && last < work.size) {
      (void)::sync_file_range(
          work.file,
          static_cast<off_t>(last),
          length,
          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
      advise(work.file, last, work.piece, POSIX_FADV_DONTNEED);
    }
  }
}

struct Method {
  bool writes = false;
  bool reserves = false;
  int open_flags = 0;
  std::function<void(Work&)> run;
};

std::map<std::string, Method> methods() {
  const auto read = [](auto run, int open_flags = 0) {
    return Method{false, false, O_RDONLY | open_flags, run};
  };
  const auto write = [](bool reserves, auto run, int open_flags = 0) {
    return Method{true, reserves, O_RDWR | O_CREAT | O_TRUNC | open_flags, run};
  };
  return {
      {"pread", read([](Work& work) { read_by_pread(work, Advice::kNone); })},
      {"pread-ahead", read([](Work& work) { read_by_pread(work, Advice::kAhead); })},
      {"pread-ahead-at-once", read([](Work& work) { read_by_pread(work, Advice::kAheadAtOnce); })},
      {"pread-behind", read([](Work& work) { read_by_pread(work, Advice::kBehind); })},
      {"pread-uncached", read([](Work& work) { read_by_pread(work, Advice::kNone, kUncached); })},
      {"pread-direct", read([](Work& work) { read_by_pread(work, Advice::kNone); }, O_DIRECT)},
      {"mmap-copied", read([](Work& work) { read_by_mmap(work, MADV_SEQUENTIAL, true); })},
      {"mmap", read([](Work& work) { read_by_mmap(work, MADV_SEQUENTIAL, false); })},
      {"mmap-populated", read([](Work& work) { read_by_mmap(work, MADV_POPULATE_READ, false); })},
      {"ring", read([](Work& work) { read_by_ring(work); })},
      {"ring-direct", read([](Work& work) { read_by_ring(work); }, O_DIRECT)},
      {"pwrite", write(false, [](Work& work) { write_by_pwrite(work, Behind::kNothing); })},
      {"reserved", write(true, [](Work& work) { write_by_pwrite(work, Behind::kNothing); })},
      {"begun", write(true, [](Work& work) { write_by_pwrite(work, Behind::kBegin); })},
      {"behind", write(true, [](Work& work) { write_by_pwrite(work, Behind::kDrop); })},
      {"uncached",
       write(true, [](Work& work) { write_by_pwrite(work, Behind::kNothing, kUncached); })},
      {"direct",
       write(
           true, [](Work& work) { write_by_pwrite(work, Behind::kNothing); }, O_DIRECT)},
  };
}

double cpu_seconds() {
  ::rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const ::timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Bytes of the file that are in the page cache.
std::uint64_t cached_bytes(int file, std::uint64_t size) {
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  std::vector<unsigned char> pages((size + kPage - 1) / kPage);
  checked(address == MAP_FAILED ? -1 : ::mincore(address, size, pages.data()), "mincore");
  ::munmap(address, size);
  return kPage * static_cast<std::uint64_t>(std::ranges::count_if(
                     pages, [](unsigned char page) { return (page & 1U) != 0; }));
}

// Bytes in the whole system.
std::uint64_t dirty_bytes() {
  std::ifstream in("/proc/meminfo");
  std::uint64_t sum = 0;
  std::uint64_t kilobytes = 0;
  for (std::string name, line; in >> name >> kilobytes && std::getline(in, line);) {
    sum += name == "Dirty:" || name == "Writeback:" ? kilobytes << 10U : 0;
  }
  return sum;
}

// The most until it is stopped, by looking every 10 ms.
class DirtyWatch {
 public:
  DirtyWatch()
      : thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            most_ = std::max(most_.load(), dirty_bytes());
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          }
        }) {}

  [[nodiscard]] std::uint64_t most() const { return most_; }

 private:
  std::atomic<std::uint64_t> most_ = 0;
  std::jthread thread_;
};

// Where a hypervisor takes free memory back, the first to use it waits for it: not what is
// measured.
void claim_memory(std::uint64_t size) {
  void* const address =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  checked(address == MAP_FAILED ? -1 : ::madvise(address, size, MADV_POPULATE_WRITE), "memory");
  ::munmap(address, size);
}

nlohmann::ordered_json measure(const Method& method, const char* path, Work& work) {
  work.file = static_cast<int>(checked(::open(path, method.open_flags, 0666), path));
  if (method.reserves) {
    checked(::fallocate(work.file, 0, 0, static_cast<off_t>(work.size)), "fallocate");
  }
  std::unique_ptr<DirtyWatch> watch = method.writes ? std::make_unique<DirtyWatch>() : nullptr;
  const auto begun = std::chrono::steady_clock::now();
  const double used = cpu_seconds();
  {
    std::vector<std::jthread> workers;
    for (int thread = 1; thread < work.threads; ++thread) {
      workers.emplace_back([&] { method.run(work); });
    }
    method.run(work);
  }
  checked(method.writes ? ::fsync(work.file) : 0, "fsync");
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
  nlohmann::ordered_json found = {{"seconds", taken.count()}, {"cpu", cpu_seconds() - used}};
  found["cached_mb"] = cached_bytes(work.file, work.size) / 1'000'000;
  if (watch) {
    found["dirty_mb"] = watch->most() / 1'000'000;
  }
  ::close(work.file);
  return found;
}

nlohmann::ordered_json run(char** arguments) {
  const Method method = methods().at(arguments[0]);
  Work work;
  work.threads = std::stoi(arguments[4]);
  work.piece = std::stoull(arguments[3]) << 20U;
  work.size = static_cast<std::uint64_t>(std::stod(arguments[2]) * 1e9) / work.piece * work.piece;
  if (!method.writes && std::string(arguments[5]) == "cold") {
    const auto file = static_cast<int>(checked(::open(arguments[1], O_RDONLY), arguments[1]));
    advise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
  if (std::string(arguments[5]) == "cold") {
    claim_memory(work.size + work.size / 8);
  }
  nlohmann::ordered_json found = measure(method, arguments[1], work);
  found["bytes"] = work.size;
  return found;
}

}  // namespace
}  // namespace quantmill::bench

int main(int count, char** arguments) {
  if (count != 7) {
    std::fputs("io_bench METHOD FILE GIGABYTES PIECE_MIB THREADS cold|warm\n", stderr);
    return 2;
  }
  try {
    std::puts(quantmill::bench::run(arguments + 1).dump().c_str());
  } catch (const quantmill::bench::LeftOut& reason) {
    std::puts(nlohmann::json{{"left_out", reason.what()}}.dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "io_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
