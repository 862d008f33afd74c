// Grids on a device of CUDA's.

#include "device/cuda_queue.h"
#include "kernels/gpu/entries.h"

namespace quantmill::gpu {
namespace {

template <typename Body>
__global__ void __launch_bounds__(kBlockThreads) run_body(const Body body, Index num_threads) {
  run_thread(body, blockIdx.x, threadIdx.x, num_threads);
}

template <typename Body>
void launch(GpuQueue& queue, const Body& body, Index num_threads) {
  const auto& cuda = static_cast<CudaQueue&>(queue);
  cuda.make_current();
  run_body<<<num_blocks(num_threads), kBlockThreads, 0, cuda.stream()>>>(body, num_threads);
  check_cuda(cudaGetLastError(), "launching a kernel");
}

template <typename... Bodies>
constexpr Entries make_entries(BodyList<Bodies...> /*list*/) {
  return {&launch<Bodies>...};
}

}  // namespace

const Entries& cuda_entries() {
  static constexpr Entries kEntries = make_entries(AllBodies());
  return kEntries;
}

}  // namespace quantmill::gpu
