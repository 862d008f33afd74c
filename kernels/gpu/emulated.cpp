// Grids on the CPU, block by block and thread by thread.

#include "device/emulated_gpu.h"
#include "kernels/gpu/entries.h"

namespace quantmill::gpu {
namespace {

template <typename Body>
void emulate(GpuQueue& queue, const Body& body, Index num_threads) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-static-cast-downcast): that of an emulated GPU
  static_cast<EmulatedQueue&>(queue).run([&] {
    for (Index block = 0; block < num_blocks(num_threads); ++block) {
      for (Index thread = 0; thread < kBlockThreads; ++thread) {
        run_thread(body, block, thread, num_threads);
      }
    }
  });
}

template <typename... Bodies>
constexpr Entries make_entries(BodyList<Bodies...> /*list*/) {
  return {&emulate<Bodies>...};
}

}  // namespace

const Entries& emulated_entries() {
  static constexpr Entries kEntries = make_entries(AllBodies());
  return kEntries;
}

}  // namespace quantmill::gpu
