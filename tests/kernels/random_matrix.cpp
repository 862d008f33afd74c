#include "tests/kernels/random_matrix.h"

#include <memory>

#include "device/cuda_gpu.h"
#include "device/emulated_gpu.h"

namespace quantmill::test {
namespace {

// Two lanes of the smallest size, so that large matrices are worked on in pieces.
constexpr std::size_t kMemory = 4 * Gpu::kSmallestBytes;

}  // namespace

std::vector<Context> contexts_of_this_machine() {
  static Gpu emulated(open_emulated_gpu(0, kMemory), kMemory, 2);
  std::vector<Context> contexts;
  for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= best_isa()) {
      contexts.push_back({Backend::kCpu, isa});
    }
  }
  contexts.push_back({Backend::kGpu, best_isa(), &emulated});
  std::string reason;
  if (count_cuda_gpus(reason) > 0) {
    static Gpu cuda(open_cuda_gpu(0), kMemory, 2);
    contexts.push_back({Backend::kGpu, best_isa(), &cuda});
  }
  return contexts;
}

std::string name_of(const Context& context) {
  if (context.backend == Backend::kGpu) {
    return context.gpu->driver().is_emulated() ? "emulated" : "cuda";
  }
  return std::string(isa_name(context.isa));
}

}  // namespace quantmill::test
