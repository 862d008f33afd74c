#pragma once

// Private to kernels/gpu: how each body is launched, on each kind of device. The list of all bodies
// is here, once; emulated.cpp and cuda.cu make a table of it.

#include <tuple>

#include "device/gpu.h"
#include "kernels/codec.h"
#include "kernels/gpu/bodies_float.h"
#include "kernels/gpu/bodies_fp8.h"
#include "kernels/gpu/bodies_gptq.h"
#include "kernels/gpu/bodies_int.h"
#include "kernels/gpu/bodies_mx.h"
#include "kernels/gpu/bodies_nvfp4.h"

namespace quantmill::gpu {

// Runs a body for threads 0 to num_threads - 1 on a queue, without waiting. Errors, kDevice.
template <typename Body>
using Launch = void (*)(GpuQueue&, const Body&, Index num_threads);

template <typename... Bodies>
struct BodyList {
  using Entries = std::tuple<Launch<Bodies>...>;
};

using AllBodies = BodyList<DecodeBody,
                           EncodeBody,
                           CopyBody,
                           ScaleBody,
                           ErrorLanesBody,
                           AddLanesBody,
                           AmaxBody,
                           InverseAmaxBody,
                           ColumnMagnitudesBody,
                           RowSquaresBody,
                           MxQuantizeBody<ElementFormat::kE2m1>,
                           MxQuantizeBody<ElementFormat::kE2m3>,
                           MxQuantizeBody<ElementFormat::kE3m2>,
                           MxQuantizeBody<ElementFormat::kE4m3>,
                           MxQuantizeBody<ElementFormat::kE5m2>,
                           MxEncodeBody<ElementFormat::kE2m1>,
                           MxEncodeBody<ElementFormat::kE2m3>,
                           MxEncodeBody<ElementFormat::kE3m2>,
                           MxEncodeBody<ElementFormat::kE4m3>,
                           MxEncodeBody<ElementFormat::kE5m2>,
                           MxDequantizeBody<ElementFormat::kE2m1>,
                           MxDequantizeBody<ElementFormat::kE2m3>,
                           MxDequantizeBody<ElementFormat::kE3m2>,
                           MxDequantizeBody<ElementFormat::kE4m3>,
                           MxDequantizeBody<ElementFormat::kE5m2>,
                           CurveWeightsBody,
                           MxCurveBody<ElementFormat::kE2m1>,
                           MxCurveBody<ElementFormat::kE2m3>,
                           MxCurveBody<ElementFormat::kE3m2>,
                           MxCurveBody<ElementFormat::kE4m3>,
                           MxCurveBody<ElementFormat::kE5m2>,
                           SumCurveBody,
                           Nvfp4ScalesBody,
                           Nvfp4SearchBody,
                           Nvfp4QuantizeBody,
                           Nvfp4DequantizeBody,
                           Fp8DequantizeBody,
                           Fp8QuantizeBody,
                           IntRangeBody,
                           IntScaleBody,
                           IntErrorBody,
                           IntPickBody,
                           IntQuantizeBody,
                           IntDequantizeBody,
                           IntPackColumnsBody,
                           IntUnpackColumnsBody,
                           IntPackRowsBody,
                           IntUnpackRowsBody,
                           GptqGatherBody,
                           GptqPanelBody,
                           GptqUpdateBody>;

using Entries = AllBodies::Entries;

// A block of a grid. Bodies take up to some 100 registers a thread, of which a multiprocessor has
// 65,536: two blocks of them fit.
constexpr Index kBlockThreads = 256;

constexpr Index num_blocks(Index num_threads) {
  return num_threads / kBlockThreads + (num_threads % kBlockThreads != 0 ? 1 : 0);
}

// What one thread of a grid does: the same on the device and in its emulation.
template <typename Body>
QUANTMILL_BODY void run_thread(const Body& body, Index block, Index thread, Index num_threads) {
  const Index index = block * kBlockThreads + thread;
  if (index < num_threads) {
    body(index);
  }
}

const Entries& emulated_entries();

// Errors, kDevice: the build has no CUDA.
const Entries& cuda_entries();

}  // namespace quantmill::gpu
