#include "device/cuda_gpu.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "device/cuda_queue.h"

namespace quantmill {
namespace {

// Large enough that a copy of one takes much longer than starting it: 0.1 ms at 50 GB/s.
constexpr std::size_t kStagingBytes = std::size_t{4} << 20;

struct CudaMemoryTraits {
  using Handle = void*;

  static Handle null() noexcept { return nullptr; }

  static void close(Handle memory) noexcept { (void)cudaFree(memory); }
};

class CudaDriver : public GpuDriver {
 public:
  explicit CudaDriver(int ordinal) : ordinal_(ordinal) {
    check_cuda(cudaSetDevice(ordinal), "choosing a GPU");
    check_cuda(cudaGetDeviceProperties(&properties_, ordinal), "asking for a GPU's properties");
  }

  [[nodiscard]] std::string name() const override {
    return fmt::format("{} (GPU {})", properties_.name, ordinal_);
  }

  [[nodiscard]] std::string identity() const override {
    std::string hex;
    for (const char byte : properties_.uuid.bytes) {
      hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    }
    return hex;
  }

  [[nodiscard]] int ordinal() const override { return ordinal_; }

  [[nodiscard]] std::size_t free_bytes() const override {
    std::size_t free = 0;
    std::size_t total = 0;
    check_cuda(cudaSetDevice(ordinal_), "choosing a GPU");
    check_cuda(cudaMemGetInfo(&free, &total), "asking for a GPU's free memory");
    return free;
  }

  [[nodiscard]] bool is_emulated() const override { return false; }

  std::byte* reserve(std::size_t bytes) override {
    void* memory = nullptr;
    check_cuda(cudaSetDevice(ordinal_), "choosing a GPU");
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // it is no error of later calls
      return nullptr;
    }
    check_cuda(status, "reserving a GPU's memory");
    memory_.reset(memory);
    return static_cast<std::byte*>(memory);
  }

  std::unique_ptr<GpuQueue> make_queue() override { return std::make_unique<CudaQueue>(ordinal_); }

 private:
  int ordinal_;
  cudaDeviceProp properties_{};
  UniqueHandle<CudaMemoryTraits> memory_;
};

}  // namespace

void check_cuda(cudaError_t status, const char* operation) {
  if (status != cudaSuccess) {
    throw Error(ErrorCode::kDevice,
                fmt::format("{} failed: {} ({}). The same job runs with --backend cpu",
                            operation,
                            cudaGetErrorString(status),
                            cudaGetErrorName(status)));
  }
}

CudaQueue::CudaQueue(int ordinal) : ordinal_(ordinal) {
  make_current();
  for (Staging& staging : staging_) {
    void* memory = nullptr;
    check_cuda(cudaMallocHost(&memory, kStagingBytes), "reserving pinned memory");
    staging.memory.reset(memory);
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    staging.free.reset(event);
  }
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  stream_.reset(stream);
}

CudaQueue::~CudaQueue() {
  (void)cudaStreamSynchronize(stream_.get());  // copies may still read the pinned memory
}

void CudaQueue::make_current() const {
  check_cuda(cudaSetDevice(ordinal_), "choosing a GPU");
}

void CudaQueue::upload(std::byte* to, std::span<const std::byte> from) {
  make_current();
  for (std::size_t done = 0, turn = 0; done < from.size(); done += kStagingBytes, turn ^= 1) {
    const std::size_t now = std::min(kStagingBytes, from.size() - done);
    Staging& staging = staging_[turn];
    check_cuda(cudaEventSynchronize(staging.free.get()), "a copy to the GPU");
    std::memcpy(staging.memory.get(), from.data() + done, now);
    check_cuda(cudaMemcpyAsync(
                   to + done, staging.memory.get(), now, cudaMemcpyHostToDevice, stream_.get()),
               "a copy to the GPU");
    check_cuda(cudaEventRecord(staging.free.get(), stream_.get()), "a copy to the GPU");
  }
}

void CudaQueue::download(std::span<std::byte> to, const std::byte* from) {
  make_current();
  // One ahead: a buffer is emptied while the next is filled.
  std::size_t asked = 0;
  std::size_t turn_asked = 0;
  const auto ask = [&] {
    const std::size_t now = std::min(kStagingBytes, to.size() - asked);
    Staging& staging = staging_[turn_asked];
    check_cuda(cudaEventSynchronize(staging.free.get()), "a copy from the GPU");
    check_cuda(cudaMemcpyAsync(
                   staging.memory.get(), from + asked, now, cudaMemcpyDeviceToHost, stream_.get()),
               "a copy from the GPU");
    check_cuda(cudaEventRecord(staging.free.get(), stream_.get()), "a copy from the GPU");
    asked += now;
    turn_asked ^= 1;
  };
  if (!to.empty()) {
    ask();
  }
  for (std::size_t done = 0, turn = 0; done < to.size(); turn ^= 1) {
    if (asked < to.size()) {
      ask();
    }
    const std::size_t now = std::min(kStagingBytes, to.size() - done);
    check_cuda(cudaEventSynchronize(staging_[turn].free.get()), "a copy from the GPU");
    std::memcpy(to.data() + done, staging_[turn].memory.get(), now);
    done += now;
  }
}

void CudaQueue::copy(std::span<std::byte> to, const std::byte* from) {
  make_current();
  check_cuda(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToDevice, stream_.get()),
             "a copy within the GPU");
}

void CudaQueue::clear(std::span<std::byte> device) {
  make_current();
  check_cuda(cudaMemsetAsync(device.data(), 0, device.size(), stream_.get()), "clearing memory");
}

void CudaQueue::finish(const char* operation) {
  make_current();
  check_cuda(cudaStreamSynchronize(stream_.get()), operation);
}

bool is_built_with_cuda() {
  return true;
}

int count_cuda_gpus(std::string& reason) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    reason = cudaGetErrorString(status);
    return 0;
  }
  if (count == 0) {
    reason = "no GPU is visible";
  }
  return count;
}

std::unique_ptr<GpuDriver> open_cuda_gpu(int ordinal) {
  return std::make_unique<CudaDriver>(ordinal);
}

}  // namespace quantmill
