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
    // Threads that wait leave their core to those that read and write.
    check_cuda(cudaInitDevice(ordinal, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid),
               "starting a GPU");
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
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
               "making an event");
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

CudaQueue::Staging& CudaQueue::next_staging(const char* operation) {
  Staging& staging = staging_[turn_];
  turn_ ^= 1;
  check_cuda(cudaEventSynchronize(staging.free.get()), operation);
  return staging;
}

void CudaQueue::upload(std::byte* to, std::span<const std::byte> from) {
  constexpr const char* kOperation = "a copy to the GPU";
  make_current();
  for (std::size_t done = 0; done < from.size(); done += kStagingBytes) {
    const std::size_t now = std::min(kStagingBytes, from.size() - done);
    const Staging& staging = next_staging(kOperation);
    std::memcpy(staging.memory.get(), from.data() + done, now);
    check_cuda(cudaMemcpyAsync(
                   to + done, staging.memory.get(), now, cudaMemcpyHostToDevice, stream_.get()),
               kOperation);
    check_cuda(cudaEventRecord(staging.free.get(), stream_.get()), kOperation);
  }
}

void CudaQueue::download(std::span<std::byte> to, const std::byte* from) {
  constexpr const char* kOperation = "a copy from the GPU";
  make_current();
  // One buffer is on its way while the one before it is emptied.
  const Staging* before = nullptr;
  std::size_t asked = 0;
  for (std::size_t done = 0; done < to.size();) {
    const Staging* coming = nullptr;
    if (asked < to.size()) {
      const std::size_t now = std::min(kStagingBytes, to.size() - asked);
      coming = &next_staging(kOperation);
      check_cuda(
          cudaMemcpyAsync(
              coming->memory.get(), from + asked, now, cudaMemcpyDeviceToHost, stream_.get()),
          kOperation);
      check_cuda(cudaEventRecord(coming->free.get(), stream_.get()), kOperation);
      asked += now;
    }
    if (before != nullptr) {
      const std::size_t now = std::min(kStagingBytes, to.size() - done);
      check_cuda(cudaEventSynchronize(before->free.get()), kOperation);
      std::memcpy(to.data() + done, before->memory.get(), now);
      done += now;
    }
    before = coming;
  }
}

void CudaQueue::copy(std::span<std::byte> to, const std::byte* from) {
  make_current();
  check_cuda(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToDevice, stream_.get()),
             "a copy within the GPU");
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
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    reason = driver == 0 ? "this machine has no driver of NVIDIA's" : cudaGetErrorString(status);
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
