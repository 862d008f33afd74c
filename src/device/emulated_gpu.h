#pragma once

// A GPU that is none: its kernels run on the CPU, thread by thread, so that what they compute is
// tested on any machine. Memory of the device can be touched by kernels and copies alone, as on a
// real one: any other access ends the program (SIGSEGV).

#include <functional>
#include <memory>

#include "device/gpu.h"

namespace quantmill {

class EmulatedMemory;

class EmulatedQueue : public GpuQueue {
 public:
  explicit EmulatedQueue(EmulatedMemory& memory) : memory_(memory) {}

  void upload(std::byte* to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, const std::byte* from) override;
  void copy(std::span<std::byte> to, const std::byte* from) override;
  void finish(const char* operation) override;

  // Runs what may touch the device's memory; one at a time.
  void run(const std::function<void()>& kernel);

 private:
  EmulatedMemory& memory_;
};

// `ordinal` of a node's such devices; it has as much memory as is asked for, up to `memory_bytes`.
std::unique_ptr<GpuDriver> open_emulated_gpu(int ordinal, std::size_t memory_bytes);

}  // namespace quantmill
