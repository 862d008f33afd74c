#pragma once

// One GPU as the launchers of kernels see it: a region of memory, and queues of work. CUDA's is in
// cuda_gpu.h; emulated_gpu.h runs the same kernels on the CPU, for machines without one.

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "device/gpu_region.h"

namespace quantmill {

// What work on a GPU is done with, in order; what is on different queues may overlap. Used by one
// thread at a time. Errors, kDevice: whatever the device reports, with the operation.
class GpuQueue {
 public:
  GpuQueue() = default;
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;
  virtual ~GpuQueue() = default;

  // Host to device; `from` can change as soon as it returns.
  virtual void upload(std::byte* to, std::span<const std::byte> from) = 0;

  // Device to host, after all that was queued before; `to` is filled when it returns.
  virtual void download(std::span<std::byte> to, const std::byte* from) = 0;

  // Within the device, without waiting; the two do not overlap.
  virtual void copy(std::span<std::byte> to, const std::byte* from) = 0;

  // Waits for all that was queued. `operation` is what a failure is reported as.
  virtual void finish(const char* operation) = 0;
};

// What differs between the makers of devices.
class GpuDriver {
 public:
  GpuDriver() = default;
  GpuDriver(const GpuDriver&) = delete;
  GpuDriver& operator=(const GpuDriver&) = delete;
  virtual ~GpuDriver() = default;

  // As it is told to people: "NVIDIA H200".
  [[nodiscard]] virtual std::string name() const = 0;

  // The same for all processes that see the same device, and for no other device.
  [[nodiscard]] virtual std::string identity() const = 0;

  [[nodiscard]] virtual int ordinal() const = 0;
  [[nodiscard]] virtual std::size_t free_bytes() const = 0;
  [[nodiscard]] virtual bool is_emulated() const = 0;

  // Device memory, 256-byte aligned, that lives as long as the driver; null if there is not so
  // much.
  virtual std::byte* reserve(std::size_t bytes) = 0;

  virtual std::unique_ptr<GpuQueue> make_queue() = 0;
};

class Gpu;

// A queue with memory of its own for what a kernel needs for the time of a call. Given back when it
// is destroyed, empty or not.
class GpuLane {
 public:
  GpuLane(GpuLane&&) = delete;
  GpuLane& operator=(GpuLane&&) = delete;
  GpuLane(const GpuLane&) = delete;
  GpuLane& operator=(const GpuLane&) = delete;
  ~GpuLane();

  [[nodiscard]] GpuQueue& queue() const { return *queue_; }

  // Uninitialized, 256-byte aligned, until the lane is given back. Errors, kDevice: it is full.
  std::byte* take(std::size_t bytes);

 private:
  friend class Gpu;
  GpuLane(Gpu& gpu, std::size_t index);

  Gpu& gpu_;
  std::size_t index_;
  GpuQueue* queue_;
  std::byte* next_;
  std::byte* end_;
};

// One device of this process. All memory is reserved at once, so that what a job takes is known
// before it starts: one half for buffers that stay (GpuRegion), the other shared by the lanes.
class Gpu {
 public:
  // At most `memory_bytes`, less if the device has less free (halved until it fits). num_lanes:
  // threads that use it at the same time; more wait for each other. Errors, kDevice: not even
  // kSmallestBytes for each lane.
  Gpu(std::unique_ptr<GpuDriver> driver, std::size_t memory_bytes, std::size_t num_lanes);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu();

  static constexpr std::size_t kSmallestBytes = std::size_t{8} << 20;

  [[nodiscard]] const GpuDriver& driver() const { return *driver_; }

  [[nodiscard]] std::size_t memory_bytes() const { return memory_.size(); }

  [[nodiscard]] std::size_t lane_bytes() const { return lane_bytes_; }

  // Of buffers that stay, for each of num_lanes threads.
  [[nodiscard]] std::size_t buffer_bytes() const;

  // Waits until one is free. Thread-safe.
  [[nodiscard]] GpuLane lane();

  // Memory that stays until it is released. Thread-safe. Errors, kDevice: there is not so much, and
  // what to do.
  std::byte* allocate(std::size_t bytes);
  void release(std::byte* memory) noexcept;

  // Whether this address is on the device.
  [[nodiscard]] bool holds(const void* address) const noexcept;

 private:
  friend class GpuLane;
  void give_back(std::size_t lane) noexcept;

  std::unique_ptr<GpuDriver> driver_;
  std::span<std::byte> memory_;
  std::size_t lane_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable lane_is_free_;
  std::vector<std::unique_ptr<GpuQueue>> queues_;
  std::vector<std::size_t> free_lanes_;
  GpuRegion region_;
};

}  // namespace quantmill
