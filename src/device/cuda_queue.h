#pragma once

// Private to device and kernels/gpu: a queue of CUDA's. Included where cuda_runtime.h is.

#include <array>

#include <cuda_runtime.h>

#include "base/handle.h"
#include "device/gpu.h"

namespace quantmill {

// Errors, kDevice: `operation` failed, with CUDA's words and what to do.
void check_cuda(cudaError_t status, const char* operation);

struct CudaStreamTraits {
  using Handle = cudaStream_t;

  static Handle null() noexcept { return nullptr; }

  static void close(Handle stream) noexcept { (void)cudaStreamDestroy(stream); }
};

struct CudaEventTraits {
  using Handle = cudaEvent_t;

  static Handle null() noexcept { return nullptr; }

  static void close(Handle event) noexcept { (void)cudaEventDestroy(event); }
};

struct CudaPinnedTraits {
  using Handle = void*;

  static Handle null() noexcept { return nullptr; }

  static void close(Handle memory) noexcept { (void)cudaFreeHost(memory); }
};

// Copies go through two pinned buffers, so that one is filled or emptied while the other is on its
// way. Threads that call in other queues overlap with it.
class CudaQueue : public GpuQueue {
 public:
  explicit CudaQueue(int ordinal);
  ~CudaQueue() override;
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  void upload(std::byte* to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, const std::byte* from) override;
  void copy(std::span<std::byte> to, const std::byte* from) override;
  void finish(const char* operation) override;

  // Ready for the calling thread to launch kernels on.
  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }

  // CUDA's current device is the thread's own: every call makes it this queue's.
  void make_current() const;

 private:
  struct Staging {
    UniqueHandle<CudaPinnedTraits> memory;
    UniqueHandle<CudaEventTraits> free;  // after the copy that reads or fills it
  };

  // The buffer that was used longest ago, free of its last copy.
  Staging& next_staging(const char* operation);

  int ordinal_;
  std::array<Staging, 2> staging_;
  std::size_t turn_ = 0;
  UniqueHandle<CudaStreamTraits> stream_;  // the first to go: it waits for no one
};

}  // namespace quantmill
