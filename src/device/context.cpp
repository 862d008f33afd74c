#include "device/context.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "device/cuda_gpu.h"
#include "device/emulated_gpu.h"

namespace quantmill {
namespace {

// The instruction set that QUANTMILL_FORCE_ISA names, checked against this machine.
Isa forced_isa(std::string_view name) {
  for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512}) {
    if (name != isa_name(isa)) {
      continue;
    }
    if (isa > best_isa()) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("QUANTMILL_FORCE_ISA is \"{}\", but this machine runs {} at best; unset it, "
                      "or set it to that",
                      name,
                      isa_name(best_isa())));
    }
    return isa;
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("QUANTMILL_FORCE_ISA is \"{}\"; it can be plain, avx2 or avx512", name));
}

// Enough for some million weights on their way in each thread: more does not make it faster.
constexpr std::uint64_t kThreadBytes = std::uint64_t{512} << 20;

// What is asked for, or what the job has a use for.
std::uint64_t wanted_memory(const DeviceRequest& request) {
  return request.gpu_memory.value_or(static_cast<std::uint64_t>(std::max(1, request.num_threads)) *
                                     kThreadBytes);
}

Device on_gpu(std::unique_ptr<GpuDriver> driver,
              std::uint64_t memory_bytes,
              const DeviceRequest& request) {
  Device device;
  device.gpu = std::make_unique<Gpu>(
      std::move(driver), memory_bytes, static_cast<std::size_t>(std::max(1, request.num_threads)));
  device.context = {Backend::kGpu, make_context("cpu").isa, device.gpu.get()};
  return device;
}

Device open_cuda(const DeviceRequest& request) {
  std::string reason;
  const int count = count_cuda_gpus(reason);
  if (count == 0) {
    throw Error(ErrorCode::kDevice, fmt::format("no GPU to compute on: {}", reason));
  }
  std::unique_ptr<GpuDriver> driver = open_cuda_gpu(request.node_rank % count);
  std::uint64_t memory_bytes = wanted_memory(request);
  if (!request.gpu_memory) {  // others of the node may share it, and the driver needs some
    const auto sharing = static_cast<std::uint64_t>((request.node_size + count - 1) / count);
    memory_bytes = std::min(memory_bytes, driver->free_bytes() / 10 * 9 / std::max(1UL, sharing));
  }
  return on_gpu(std::move(driver), memory_bytes, request);
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return "plain";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Isa best_isa() {
  const auto avx2 = static_cast<bool>(__builtin_cpu_supports("avx2"));
  const bool avx512 = static_cast<bool>(__builtin_cpu_supports("avx512f")) &&
                      static_cast<bool>(__builtin_cpu_supports("avx512bw")) &&
                      static_cast<bool>(__builtin_cpu_supports("avx512vl")) &&
                      static_cast<bool>(__builtin_cpu_supports("avx512dq"));
  if (avx2 && avx512) {
    return Isa::kAvx512;
  }
  return avx2 ? Isa::kAvx2 : Isa::kPlain;
}

std::string describe_backend(const Context& context) {
  switch (context.backend) {
    case Backend::kReference:
      return "reference";
    case Backend::kCpu:
      return fmt::format("cpu ({})", isa_name(context.isa));
    case Backend::kGpu:
      return context.gpu->driver().is_emulated()
                 ? std::string("emulated")
                 : fmt::format("cuda ({})", context.gpu->driver().name());
  }
  return "unknown";
}

Context make_context(std::string_view name) {
  if (name == "reference") {
    return {Backend::kReference, Isa::kPlain, nullptr};
  }
  check_invariant(name == "cpu", "a context of a GPU needs a device");
  const char* forced = std::getenv("QUANTMILL_FORCE_ISA");
  return {Backend::kCpu, forced == nullptr ? best_isa() : forced_isa(forced), nullptr};
}

Device open_device(const DeviceRequest& request) {
  const std::string& name = request.backend;
  if (name == "reference" || name == "cpu") {
    if (request.gpu_memory) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("--gpu-memory is of GPUs, and the backend is {}; leave it out", name));
    }
    return {nullptr, make_context(name), {}};
  }
  if (name == "emulated") {
    return on_gpu(open_emulated_gpu(request.node_rank, wanted_memory(request)),
                  wanted_memory(request),
                  request);
  }
  if (name != "auto" && name != "cuda") {
    throw Error(ErrorCode::kUsage,
                fmt::format("unknown backend \"{}\"; it can be auto, cpu, cuda, emulated or "
                            "reference",
                            name));
  }
  if (name == "cuda") {
    return open_cuda(request);
  }
  if (!is_built_with_cuda()) {
    return {nullptr, make_context("cpu"), {}};
  }
  try {
    return open_cuda(request);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDevice) {
      throw;
    }
    return {nullptr, make_context("cpu"), error.message()};
  }
}

}  // namespace quantmill
