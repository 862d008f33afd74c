"""What lets vLLM compute on a CPU with formats for which it has kernels for GPUs only. `install` enters:

  * for MXFP4, MXFP6, MXFP8 and NVFP4, vLLM's own emulation kernels into its tables for a CPU, which are empty otherwise. That of
    MXFP4 calls GPU code of amd-quark: in its place, vLLM's reference for FP4 nibbles and torch's for E8M0;
  * for NVFP4 weights alone, for which vLLM forces a kernel for GPUs: its reference of their values, then torch's linear;
  * for stored scales of FP8 activations, which vLLM's builds for a CPU lack the operation for: torch;
  * for FP8 in blocks, whose kernels for a CPU need AMX: weights times scales, then torch's linear;
  * for INT8 weights alone, and for INT4 where vLLM is built without the kernel (CPUs without AVX-512): the same.
It also lets vLLM look at a model class in this process: a process of its own for each takes half a minute's work.
Configuration, choice of scheme, names, shapes, fused shards, loaders and FP8 and INT8 by channel stay vLLM's.
"""

import importlib

import torch
import torch.nn.functional as F
import vllm.model_executor.kernels.linear as kernels
import vllm.model_executor.kernels.linear.mxfp4.emulation as emulation
from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
from vllm import _custom_ops
from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import (break_fp4_bytes, cast_to_fp4,
                                                                                 dequantize_to_dtype)
from vllm.model_executor.layers.quantization.utils.quant_utils import kMxfp4Dynamic, unpack_quantized_values_into_int32
from vllm.model_executor.models import registry
from vllm.platforms import PlatformEnum

BLOCK = 32
TOP_EXPONENT = 2  # of FP4


def dequantize_mxfp4(weight, scale, dtype):
    elements = break_fp4_bytes(weight, torch.float32)
    scales = scale.view(torch.float8_e8m0fnu).float().repeat_interleave(BLOCK, dim=1)
    return (elements * scales).to(dtype)


def round_to_mxfp4(x, mode="even"):
    """Activations as a server rounds them: the scale by the rule "even"."""
    blocks = x.float().reshape(-1, BLOCK)
    bits = blocks.abs().amax(-1, keepdim=True).contiguous().view(torch.int32) + (1 << 21)
    scales = torch.exp2(((bits >> 23) - 127 - TOP_EXPONENT).clamp(-127, 127).float())
    return (cast_to_fp4(blocks / scales) * scales).reshape(x.shape).to(x.dtype)


class PlainFp8Block(kernels.Fp8BlockScaledMMLinearKernel):
    apply_input_quant = False

    @classmethod
    def is_supported(cls, compute_capability=None):
        return True, None

    def apply_block_scaled_mm(self, A, B, As, Bs):
        block_rows, block_columns = self.weight_group_shape
        scales = Bs.float().repeat_interleave(block_rows, 0)[:B.shape[0]]
        scales = scales.repeat_interleave(block_columns, 1)[:, :B.shape[1]]
        return F.linear(A, (B.float() * scales).to(A.dtype))


class PlainNvfp4Weights(kernels.EmulationNvFp4LinearKernel):
    def apply_weights(self, layer, x, bias=None):
        weight = dequantize_to_dtype(layer.weight.data.view(torch.uint8), layer.weight_scale.data,
                                     layer.weight_global_scale, x.dtype, 16, swizzle=False)
        return F.linear(x, weight, bias)


def quantize_fp8(original):
    """vLLM's operation with a stored scale in torch, without one as it is."""
    def quantize(x, scale=None, *rest, **settings):
        if scale is None:
            return original(x, scale, *rest, **settings)
        return (x.float() / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn), scale
    return quantize


def install_static_fp8():
    _custom_ops.scaled_fp8_quant = quantize_fp8(_custom_ops.scaled_fp8_quant)
    schemes = "vllm.model_executor.layers.quantization."
    for name in ("quark.schemes.quark_w8a8_fp8", "compressed_tensors.schemes.compressed_tensors_w8a8_fp8"):
        module = importlib.import_module(schemes + name)
        module.expose_input_quant_key = lambda *_: None  # else activations are quantized with silu, on GPUs


class PlainIntegers(CPUWNA16LinearKernel):
    """Takes and leaves parameters as the kernel for AVX-512 does, which vLLM calls GPTQ's layout."""

    @classmethod
    def can_implement(cls, config):
        return True, None

    def by_rows(self, values, parameter):
        return values if parameter.output_dim == 0 else values.t()

    def unpacked(self, parameter):
        codes = unpack_quantized_values_into_int32(parameter.data, self.config.weight_type, parameter.packed_dim)
        return self.by_rows(codes, parameter)

    def process_weights_after_loading(self, layer):
        packed, scales, *_ = self._get_weight_params(layer)
        codes, scales = self.unpacked(packed), self.by_rows(scales.data, scales).float()
        width = codes.shape[1] // scales.shape[1]
        zeros = self.config.weight_type.bias
        if self.config.zero_points:
            zeros = self.unpacked(getattr(layer, self.w_zp_name)).repeat_interleave(width, 1)
        layer.plain_weight = ((codes - zeros) * scales.repeat_interleave(width, 1)).bfloat16()

    def apply_weights(self, layer, x, bias=None):
        return F.linear(x, layer.plain_weight, bias)


def install():
    cpu = PlatformEnum.CPU
    kernels._POSSIBLE_MXFP4_KERNELS[cpu] = [kernels.EmulationMxfp4LinearKernel]
    kernels._POSSIBLE_MXFP6_KERNELS[cpu] = [kernels.EmulationMxfp6LinearKernel]
    kernels._POSSIBLE_MXFP8_KERNELS[cpu] = [kernels.EmulationMxfp8LinearKernel]
    kernels._POSSIBLE_NVFP4_KERNELS[cpu] = [kernels.EmulationNvFp4LinearKernel]
    kernels.MarlinNvFp4LinearKernel = PlainNvfp4Weights
    registry._run_in_subprocess = lambda inspect: inspect()
    install_static_fp8()
    emulation.dequant_mxfp4 = dequantize_mxfp4
    emulation._ACTIVATION_QUANT_DEQUANT_FUNCS[kMxfp4Dynamic] = round_to_mxfp4
    kernels._POSSIBLE_FP8_BLOCK_KERNELS[cpu] = [*kernels._POSSIBLE_FP8_BLOCK_KERNELS.get(cpu, []), PlainFp8Block]
    own = kernels._POSSIBLE_KERNELS[cpu] if hasattr(torch.ops._C, "cpu_gemm_wna16") else []
    kernels._POSSIBLE_KERNELS[cpu] = [*own, PlainIntegers]
