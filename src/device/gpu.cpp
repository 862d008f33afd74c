#include "device/gpu.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/byte_size.h"
#include "base/error.h"

namespace quantmill {
namespace {

std::size_t align(std::size_t bytes) {
  return (bytes + GpuRegion::kAlignment - 1) / GpuRegion::kAlignment * GpuRegion::kAlignment;
}

}  // namespace

GpuLane::GpuLane(Gpu& gpu, std::size_t index)
    : gpu_(gpu),
      index_(index),
      queue_(gpu.queues_[index].get()),
      next_(gpu.memory_.data() + index * gpu.lane_bytes_),
      end_(next_ + gpu.lane_bytes_) {}

GpuLane::~GpuLane() {
  gpu_.give_back(index_);
}

std::byte* GpuLane::take(std::size_t bytes) {
  const std::size_t wanted = align(std::max<std::size_t>(1, bytes));
  const auto left = static_cast<std::size_t>(end_ - next_);
  if (wanted > left) {
    throw Error(
        ErrorCode::kDevice,
        fmt::format(
            "the GPU's memory is too small: a step needs {}, and {} of the {} that each of {} "
            "threads has are left; raise --gpu-memory (now {}), or take fewer --threads",
            format_size(wanted),
            format_size(left),
            format_size(gpu_.lane_bytes()),
            gpu_.queues_.size(),
            format_size(gpu_.memory_bytes())));
  }
  return std::exchange(next_, next_ + wanted);
}

Gpu::Gpu(std::unique_ptr<GpuDriver> driver, std::size_t memory_bytes, std::size_t num_lanes)
    : driver_(std::move(driver)) {
  const std::size_t lanes = std::max<std::size_t>(1, num_lanes);
  const std::size_t smallest = 2 * lanes * kSmallestBytes;
  const std::size_t free = driver_->free_bytes();
  std::byte* memory = nullptr;
  std::size_t bytes = std::min(memory_bytes, free);
  for (; memory == nullptr && bytes >= smallest; bytes /= 2) {
    bytes = bytes / (2 * lanes * GpuRegion::kAlignment) * (2 * lanes * GpuRegion::kAlignment);
    memory = driver_->reserve(bytes);
    if (memory != nullptr) {
      break;
    }
  }
  if (memory == nullptr) {
    throw Error(ErrorCode::kDevice,
                fmt::format("{}: of its memory {} are free, and --gpu-memory is {}; {} threads "
                            "need {} at least. Take fewer --threads, another GPU "
                            "(CUDA_VISIBLE_DEVICES), or --backend cpu",
                            driver_->name(),
                            format_size(free),
                            format_size(memory_bytes),
                            lanes,
                            format_size(smallest)));
  }
  memory_ = {memory, bytes};
  lane_bytes_ = bytes / 2 / lanes;
  region_ = GpuRegion(bytes / 2);
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    queues_.push_back(driver_->make_queue());
    free_lanes_.push_back(lane);
  }
}

Gpu::~Gpu() = default;

std::size_t Gpu::buffer_bytes() const {
  return memory_.size() / 2 / queues_.size();
}

GpuLane Gpu::lane() {
  std::unique_lock lock(mutex_);
  lane_is_free_.wait(lock, [&] { return !free_lanes_.empty(); });
  const std::size_t index = free_lanes_.back();
  free_lanes_.pop_back();
  return {*this, index};
}

void Gpu::give_back(std::size_t lane) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    free_lanes_.push_back(lane);  // as many places as it once had
  }
  lane_is_free_.notify_one();
}

std::byte* Gpu::allocate(std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  const auto offset = region_.take(bytes);
  if (!offset) {
    throw Error(
        ErrorCode::kDevice,
        fmt::format("the GPU's memory is too small: a buffer of {} is needed, and the largest gap "
                    "is {} of the {} for buffers; raise --gpu-memory (now {}), or take fewer "
                    "--threads",
                    format_size(bytes),
                    format_size(region_.largest_gap()),
                    format_size(memory_.size() / 2),
                    format_size(memory_.size())));
  }
  return memory_.data() + memory_.size() / 2 + *offset;
}

void Gpu::release(std::byte* memory) noexcept {
  const std::scoped_lock lock(mutex_);
  region_.release(static_cast<std::size_t>(memory - (memory_.data() + memory_.size() / 2)));
}

bool Gpu::holds(const void* address) const noexcept {
  const std::less<> before;
  return !before(address, memory_.data()) && before(address, memory_.data() + memory_.size());
}

}  // namespace quantmill
