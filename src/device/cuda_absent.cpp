// In place of cuda_gpu.cpp where the build has no CUDA.

#include "base/error.h"
#include "device/cuda_gpu.h"

namespace quantmill {
namespace {

constexpr const char* kWithout = "this quantmill was built without CUDA (QUANTMILL_CUDA)";

}  // namespace

bool is_built_with_cuda() {
  return false;
}

int count_cuda_gpus(std::string& reason) {
  reason = kWithout;
  return 0;
}

std::unique_ptr<GpuDriver> open_cuda_gpu(int /*ordinal*/) {
  throw Error(ErrorCode::kDevice, kWithout);
}

}  // namespace quantmill
