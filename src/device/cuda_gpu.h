#pragma once

// NVIDIA's GPUs. A build without CUDA has cuda_absent.cpp in place of cuda_gpu.cpp.

#include <memory>
#include <string>

#include "device/gpu.h"

namespace quantmill {

// Whether this build has CUDA's kernels.
bool is_built_with_cuda();

// Devices that this process sees (CUDA_VISIBLE_DEVICES); 0 without a driver. `reason`: why there is
// none, as told to people.
int count_cuda_gpus(std::string& reason);

// Number `ordinal` of them. Errors, kDevice: it can't be used, in CUDA's words.
std::unique_ptr<GpuDriver> open_cuda_gpu(int ordinal);

}  // namespace quantmill
