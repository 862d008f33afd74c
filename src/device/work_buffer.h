#pragma once

// Elements that pass from kernel to kernel, where kernels run: in the memory of the context's GPU,
// or the host's. Not for what the host reads or writes itself.

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/context.h"

namespace quantmill {

template <typename Value>
class WorkBuffer {
  static_assert(std::is_trivially_copyable_v<Value>);

 public:
  // The GPU of `context` must outlive it.
  explicit WorkBuffer(const Context& context) : gpu_(context.gpu) {}

  WorkBuffer(const WorkBuffer&) = delete;
  WorkBuffer& operator=(const WorkBuffer&) = delete;

  WorkBuffer(WorkBuffer&& other) noexcept
      : gpu_(other.gpu_),
        device_(std::exchange(other.device_, nullptr)),
        capacity_(std::exchange(other.capacity_, 0)),
        size_(std::exchange(other.size_, 0)),
        host_(std::move(other.host_)) {}

  WorkBuffer& operator=(WorkBuffer&&) = delete;

  ~WorkBuffer() { give_back(); }

  // What was there is lost. Errors, kDevice: the GPU has not so much (Gpu::allocate).
  void resize(std::size_t size) {
    if (gpu_ == nullptr) {
      host_.resize(size);
    } else if (size > capacity_) {
      give_back();
      device_ = gpu_->allocate(size * sizeof(Value));
      capacity_ = size;
    }
    size_ = size;
  }

  // Of a GPU's memory all is free for others again; host memory is kept for the next time.
  void give_back() noexcept {
    if (device_ != nullptr) {
      gpu_->release(std::exchange(device_, nullptr));
      capacity_ = 0;
      size_ = 0;
    }
  }

  // Not to be dereferenced by the host.
  [[nodiscard]] Value* data() { return on_device() ? device_values() : host_.data(); }

  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  [[nodiscard]] bool on_device() const { return gpu_ != nullptr; }

  [[nodiscard]] Value* device_values() const { return reinterpret_cast<Value*>(device_); }

  Gpu* gpu_;
  std::byte* device_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
  std::vector<Value> host_;
};

// One element, wherever it lies: for messages.
template <typename Value>
Value element_at(const Context& context, const Value* address) {
  if (context.gpu == nullptr || !context.gpu->holds(address)) {
    return *address;
  }
  Value value;
  context.gpu->lane().queue().download({reinterpret_cast<std::byte*>(&value), sizeof value},
                                       reinterpret_cast<const std::byte*>(address));
  return value;
}

// How many elements are worth working on at a time: what stays in a core's second-level cache, or
// on a GPU what keeps it busy, in `buffers` buffers of such elements for each thread.
std::size_t work_elements(const Context& context, std::size_t element_bytes, std::size_t buffers);

}  // namespace quantmill
