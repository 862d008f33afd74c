#include "device/emulated_gpu.h"

#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/handle.h"

namespace quantmill {

// Pages that can be touched only while open() runs.
class EmulatedMemory {
 public:
  EmulatedMemory() = default;
  EmulatedMemory(const EmulatedMemory&) = delete;
  EmulatedMemory& operator=(const EmulatedMemory&) = delete;

  ~EmulatedMemory() {
    if (!pages_.empty()) {
      munmap(pages_.data(), pages_.size());
    }
  }

  std::byte* reserve(std::size_t bytes) {
    void* const pages =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
      return nullptr;
    }
    pages_ = {static_cast<std::byte*>(pages), bytes};
    return pages_.data();
  }

  void open(const std::function<void()>& body) {
    const std::scoped_lock lock(mutex_);
    protect(PROT_READ | PROT_WRITE);
    body();
    protect(PROT_NONE);
  }

 private:
  void protect(int access) {
    if (mprotect(pages_.data(), pages_.size(), access) != 0) {
      throw Error(ErrorCode::kDevice,
                  fmt::format("the emulated GPU's memory: mprotect: {}", std::strerror(errno)));
    }
  }

  std::mutex mutex_;
  std::span<std::byte> pages_;
};

void EmulatedQueue::upload(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty()) {
    memory_.open([&] { std::memcpy(to, from.data(), from.size()); });
  }
}

void EmulatedQueue::download(std::span<std::byte> to, const std::byte* from) {
  if (!to.empty()) {
    memory_.open([&] { std::memcpy(to.data(), from, to.size()); });
  }
}

void EmulatedQueue::copy(std::span<std::byte> to, const std::byte* from) {
  download(to, from);
}

void EmulatedQueue::finish(const char* /*operation*/) {}

void EmulatedQueue::run(const std::function<void()>& kernel) {
  memory_.open(kernel);
}

namespace {

class EmulatedDriver : public GpuDriver {
 public:
  EmulatedDriver(int ordinal, std::size_t memory_bytes)
      : ordinal_(ordinal), memory_bytes_(memory_bytes) {}

  [[nodiscard]] std::string name() const override { return "a GPU emulated on the CPU"; }

  [[nodiscard]] std::string identity() const override {
    return fmt::format("emulated {} of process {}", ordinal_, getpid());
  }

  [[nodiscard]] int ordinal() const override { return ordinal_; }

  [[nodiscard]] std::size_t free_bytes() const override { return memory_bytes_; }

  [[nodiscard]] bool is_emulated() const override { return true; }

  std::byte* reserve(std::size_t bytes) override { return memory_.reserve(bytes); }

  std::unique_ptr<GpuQueue> make_queue() override {
    return std::make_unique<EmulatedQueue>(memory_);
  }

 private:
  int ordinal_;
  std::size_t memory_bytes_;
  EmulatedMemory memory_;
};

}  // namespace

std::unique_ptr<GpuDriver> open_emulated_gpu(int ordinal, std::size_t memory_bytes) {
  return std::make_unique<EmulatedDriver>(ordinal, memory_bytes);
}

}  // namespace quantmill
