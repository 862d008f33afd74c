#pragma once

// Private to kernels/gpu: one call of a public kernel, from host memory to host memory or on what
// lies on the device already.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/context.h"
#include "kernels/gpu/entries.h"
#include "kernels/matrix.h"

namespace quantmill::gpu {

template <typename Value>
std::span<const std::byte> bytes_of(std::span<Value> values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size_bytes()};
}

template <typename Value>
std::span<std::byte> writable_bytes_of(std::span<Value> values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size_bytes()};
}

// A queue and memory for the time of a call. What it puts on the device is gone afterwards; what a
// caller has there (Gpu::holds) is used in place. Errors, kDevice, from every function.
class Call {
 public:
  // `operation` is told where the device fails: "quantizing to MX".
  Call(const Context& context, const char* operation)
      : gpu_(*context.gpu), operation_(operation), lane_(gpu_.lane()) {}

  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  // On the device; null for nothing.
  template <typename Value>
  const Value* in(std::span<const Value> values) {
    if (values.empty()) {
      return nullptr;
    }
    if (gpu_.holds(values.data())) {
      return values.data();
    }
    auto* const device = lane_.take(values.size_bytes());
    lane_.queue().upload(device, bytes_of(values));
    return reinterpret_cast<const Value*>(device);
  }

  const float* in(ConstFloatMatrix matrix) {
    return in(std::span<const float>(matrix.data, matrix.rows * matrix.cols));
  }

  // Brought to `values` by finish(), unless that is on the device.
  template <typename Value>
  Value* out(std::span<Value> values) {
    if (gpu_.holds(values.data())) {
      return values.data();
    }
    auto* const device = lane_.take(values.size_bytes());
    results_.emplace_back(writable_bytes_of(values), device);
    return reinterpret_cast<Value*>(device);
  }

  float* out(FloatMatrix matrix) {
    return out(std::span<float>(matrix.data, matrix.rows * matrix.cols));
  }

  // Both: what is there is changed.
  template <typename Value>
  Value* change(std::span<Value> values) {
    Value* const device = out(values);
    if (!gpu_.holds(values.data())) {
      lane_.queue().upload(reinterpret_cast<std::byte*>(device), bytes_of(values));
    }
    return device;
  }

  float* change(FloatMatrix matrix) {
    return change(std::span<float>(matrix.data, matrix.rows * matrix.cols));
  }

  // For the time of the call, uninitialized.
  template <typename Value>
  Value* scratch(std::size_t count) {
    return reinterpret_cast<Value*>(lane_.take(count * sizeof(Value)));
  }

  // To memory of scratch(), after all that was launched before.
  template <typename Value>
  void upload(Value* device, std::span<const Value> values) {
    lane_.queue().upload(reinterpret_cast<std::byte*>(device), bytes_of(values));
  }

  template <typename Body>
  void launch(const Body& body, std::size_t num_threads) {
    if (num_threads > 0) {
      std::get<Launch<Body>>(entries())(lane_.queue(), body, static_cast<Index>(num_threads));
    }
  }

  // Waits, and brings results.
  void finish();

 private:
  [[nodiscard]] const Entries& entries() const;

  Gpu& gpu_;
  const char* operation_;
  GpuLane lane_;
  std::vector<std::pair<std::span<std::byte>, const std::byte*>> results_;
  bool is_finished_ = false;
};

// A size of a grid, which may be "all there are".
inline Index index_of(std::size_t size) {
  return static_cast<Index>(std::min<std::size_t>(size, 0x7fffffff));
}

// What a call takes of a lane for each item (a row, a block), and beside them.
struct Footprint {
  std::size_t item_bytes = 0;
  std::size_t other_bytes = 0;
  std::size_t item_elements = 1;  // numbers of threads and elements stay below 2^31
  std::size_t together = 1;       // items that can't be cut
};

// Items of one call: what fits, a multiple of `together`, at least that.
std::size_t items_of_call(const Context& context, const Footprint& footprint);

// Calls body(first, count) for pieces of `total` items.
template <typename Body>
void in_pieces(const Context& context,
               std::size_t total,
               const Footprint& footprint,
               const Body& body) {
  const std::size_t most = items_of_call(context, footprint);
  for (std::size_t first = 0; first < total; first += most) {
    body(first, std::min(most, total - first));
  }
}

// Bytes that a value takes of a lane: none if it is on the device.
template <typename Value>
std::size_t lane_bytes_each(const Context& context, const Value* values) {
  return context.gpu->holds(values) ? 0 : sizeof(Value);
}

// Rows from number `first` on.
template <typename Value>
std::span<Value> rows_of(std::span<Value> values,
                         std::size_t per_row,
                         std::size_t first,
                         std::size_t count) {
  return values.subspan(first * per_row, count * per_row);
}

// The same of a side that may be missing: nothing of nothing.
template <typename Value>
std::span<Value> rows_if_any(std::span<Value> values,
                             std::size_t per_row,
                             std::size_t first,
                             std::size_t count) {
  return values.empty() ? values : rows_of(values, per_row, first, count);
}

inline ConstFloatMatrix rows_of(ConstFloatMatrix matrix, std::size_t first, std::size_t count) {
  return {matrix.data + first * matrix.cols, count, matrix.cols};
}

inline FloatMatrix rows_of(FloatMatrix matrix, std::size_t first, std::size_t count) {
  return {matrix.data + first * matrix.cols, count, matrix.cols};
}

}  // namespace quantmill::gpu
