#pragma once

// The only RAII template: owns one C handle (file descriptor, HDF5 identifier, MPI communicator …).
// Not for memory that a standard container can own.

#include <utility>

namespace quantmill {

// Traits: `using Handle = …; static Handle null() noexcept; static void close(Handle) noexcept;`
template <typename Traits>
class UniqueHandle {
 public:
  using Handle = typename Traits::Handle;

  UniqueHandle() noexcept = default;

  explicit UniqueHandle(Handle handle) noexcept : handle_(handle) {}

  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;

  UniqueHandle(UniqueHandle&& other) noexcept
      : handle_(std::exchange(other.handle_, Traits::null())) {}

  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    if (this != &other) {
      reset(std::exchange(other.handle_, Traits::null()));
    }
    return *this;
  }

  ~UniqueHandle() { reset(); }

  [[nodiscard]] Handle get() const noexcept { return handle_; }

  [[nodiscard]] bool has_value() const noexcept { return handle_ != Traits::null(); }

  [[nodiscard]] Handle release() noexcept { return std::exchange(handle_, Traits::null()); }

  void reset(Handle handle = Traits::null()) noexcept {
    const Handle old = std::exchange(handle_, handle);
    if (old != Traits::null()) {
      Traits::close(old);
    }
  }

 private:
  Handle handle_ = Traits::null();
};

}  // namespace quantmill
