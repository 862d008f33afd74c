"""Scales of the key-value cache: vLLM finds those that quantmill wrote, and where the CPU lets it, generates with such a
cache."""

import torch
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsKVCacheMethod
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

import format_models
import vllm_engine
from folding import quantmill

# Names of a layer's two scales in the file, below self_attn.
LAYOUTS = {"compressed-tensors": ("k_scale", "v_scale"), "quark": ("k_proj.output_scale", "v_proj.output_scale")}
# Of the parameters that vLLM loads them into: of the model's type, or always float32.
TYPE_IN_VLLM = {"compressed-tensors": torch.float32, "quark": torch.bfloat16}
# Mean difference of log-probabilities from those with a cache in BF16. Rounding to e4m3 moves them by 0.08 and 0.12 in this random
# model; scales of a quarter, with which keys and values saturate, by 0.5.
LOG_PROBABILITIES = 0.25


class LoadedScales:
    """(key, value) of every layer, as vLLM's method of the cache leaves them once the file is loaded. Kept from there,
    since vLLM computes with such a cache on CPUs with AVX-512 only, and stops later on others."""

    def __init__(self):
        self.values = []
        self.originals = {cls: cls.process_weights_after_loading
                          for cls in (BaseKVCacheMethod, CompressedTensorsKVCacheMethod)}

    def keeping(self, original):
        def finish(method, layer):
            original(method, layer)
            self.values.append((layer._k_scale_float, layer._v_scale_float))
        return finish

    def __enter__(self):
        for cls, original in self.originals.items():
            cls.process_weights_after_loading = self.keeping(original)
        return self

    def __exit__(self, *_):
        for cls, original in self.originals.items():
            cls.process_weights_after_loading = original


def read(folder, kv_cache_dtype):
    """(scales, log-probabilities of the prompt's tokens or None where vLLM lacks the kernel)"""
    with LoadedScales() as scales:
        try:
            with vllm_engine.engine(folder, kv_cache_dtype=kv_cache_dtype) as llm:
                _, found = vllm_engine.log_probabilities(llm)
            return scales.values, found[:len(vllm_engine.PROMPT) - 1]
        except NotImplementedError:
            return scales.values, None


def check_layout(report, source, statistics, layout):
    folder = format_models.WORK / f"cache.{layout}"
    quantmill("quantize", source, folder, "--scheme", "fp8-channel", "--layout", layout, "--scaling", "none", "--kv-cache",
              "fp8", "--stats", statistics)
    stored = format_models.tensors(folder)
    layers = range(format_models.SIZES["num_hidden_layers"])
    wanted = [tuple(stored[f"model.layers.{layer}.self_attn.{name}"].to(TYPE_IN_VLLM[layout]).item()
                    for name in LAYOUTS[layout]) for layer in layers]
    found, with_fp8 = read(folder, "fp8")
    report.check(f"{layout}: vLLM has the scales of {len(wanted)} layers",
                 None if found == wanted else f"{found}, not {wanted}")
    report.cell(f"fp8-channel {layout}", "vLLM, FP8 cache", "scales as written" if found == wanted else "other scales")
    if with_fp8 is not None:
        change = (with_fp8 - read(folder, "bfloat16")[1]).abs().mean().item()
        report.check(f"{layout}: vLLM generates with such a cache, log-probabilities differ by {change:.3f}",
                     None if 0 < change <= LOG_PROBABILITIES else "not by the error of e4m3")

    def doubled(tensors):
        tensors[f"model.layers.1.self_attn.{LAYOUTS[layout][1]}"] *= 2

    broken, _ = read(format_models.write_copy(folder, f"cache.{layout}.broken", doubled), "fp8")
    report.check(f"{layout}: another scale of one layer's values is seen",
                 "it is not" if broken == wanted or len(broken) != len(wanted) else None)


def check(report):
    source = format_models.write_model("llama")
    statistics = format_models.record_inputs(source)
    for layout in LAYOUTS:
        report.section(layout, check_layout, source, statistics, layout)

