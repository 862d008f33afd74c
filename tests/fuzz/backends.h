#pragma once

// What targets compare with the reference: the cpu backend without and with vectors, and the GPU's
// kernels, emulated.

#include <vector>

#include "device/context.h"
#include "device/emulated_gpu.h"

namespace quantmill::fuzz {

inline const std::vector<Context>& compared_backends() {
  constexpr std::size_t kMemory = 2 * Gpu::kSmallestBytes;
  static Gpu gpu(open_emulated_gpu(0, kMemory), kMemory, 1);
  static const std::vector<Context> backends = {
      {Backend::kCpu, Isa::kPlain}, {Backend::kCpu, best_isa()}, {Backend::kGpu, best_isa(), &gpu}};
  return backends;
}

}  // namespace quantmill::fuzz
