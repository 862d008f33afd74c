// In place of cuda.cu where the build has no CUDA.

#include "base/error.h"
#include "kernels/gpu/entries.h"

namespace quantmill::gpu {

const Entries& cuda_entries() {
  throw Error(ErrorCode::kDevice, "this quantmill was built without CUDA (QUANTMILL_CUDA)");
}

}  // namespace quantmill::gpu
