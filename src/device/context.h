#pragma once

// Where kernels run: chosen once per job and passed to every kernel.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "device/gpu.h"

namespace quantmill {

enum class Backend { kReference, kCpu, kGpu };

// Instruction sets of the cpu backend, in rising order. kPlain is what the compiler makes without
// any.
enum class Isa { kPlain, kAvx2, kAvx512 };

struct Context {
  Backend backend = Backend::kCpu;
  Isa isa = Isa::kPlain;  // of kCpu, and of what is not done on a GPU
  Gpu* gpu = nullptr;     // of kGpu
};

std::string_view isa_name(Isa isa);

// The best instruction set that this machine runs.
Isa best_isa();

// "reference", "cpu (avx2)", "cuda (NVIDIA H200 (GPU 0))", "emulated".
std::string describe_backend(const Context& context);

// What is asked for, and what of it is this process's.
struct DeviceRequest {
  std::string backend = "auto";             // auto, cpu, cuda, emulated or reference
  std::optional<std::uint64_t> gpu_memory;  // bytes; without: 512 MB a thread, if they are free
  int num_threads = 1;                      // of this process
  int node_rank = 0;                        // among the job's processes on this machine
  int node_size = 1;
};

// Where a process computes. Owns the GPU that its context names.
struct Device {
  std::unique_ptr<Gpu> gpu;
  Context context;
  std::string notice;  // why auto did not take a GPU though the build can; else empty
};

// Processes of a node take its visible GPUs in turn (CUDA_VISIBLE_DEVICES, Slurm's
// --gpus-per-task). auto is the GPU if the build has CUDA and there is one, otherwise the CPU;
// emulated runs the GPU's kernels on the CPU, slowly. The environment variable QUANTMILL_FORCE_ISA
// (plain, avx2, avx512) overrides the choice of the instruction set. Errors, kUsage: an unknown
// name, or an instruction set that this machine lacks; kDevice: a GPU that is asked for by name is
// not there or can't be used.
Device open_device(const DeviceRequest& request);

// Of the CPU, for what is not worth a GPU. `name`: cpu or reference. Errors, kUsage: as
// open_device.
Context make_context(std::string_view name);

}  // namespace quantmill
