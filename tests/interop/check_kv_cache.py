"""Scales of the key-value cache: vLLM finds those that quantmill wrote, and generates with such a cache."""

import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than all that is computed here
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import format_models
import vllm_engine
from folding import quantmill
from report import Report

# Names of a layer's two scales in the file, below self_attn.
LAYOUTS = {"compressed-tensors": ("k_scale", "v_scale"), "quark": ("k_proj.output_scale", "v_proj.output_scale")}
# Mean difference of log-probabilities from those with a cache in BF16; measured once: 0.02.
LOG_PROBABILITIES = 0.1


def scales_in_vllm(model):
    """(key, value) of every layer, once loaded."""
    return [(module._k_scale_float, module._v_scale_float) for _, module in model.named_modules()
            if hasattr(module, "_k_scale_float")]


def read(folder, **settings):
    """(scales, tokens with their log-probabilities)"""
    with vllm_engine.engine(folder, **settings) as llm:
        return llm.apply_model(scales_in_vllm)[0], vllm_engine.log_probabilities(llm)


def check_layout(report, source, statistics, layout):
    folder = format_models.WORK / f"cache.{layout}"
    quantmill("quantize", source, folder, "--scheme", "fp8-channel", "--layout", layout, "--scaling", "none", "--kv-cache",
              "fp8", "--stats", statistics)
    stored = format_models.tensors(folder)
    layers = range(format_models.SIZES["num_hidden_layers"])
    wanted = [tuple(stored[f"model.layers.{layer}.self_attn.{name}"].item() for name in LAYOUTS[layout]) for layer in layers]
    found, (_, with_fp8) = read(folder, kv_cache_dtype="fp8")
    report.check(f"{layout}: vLLM has the scales of {len(wanted)} layers", None if found == wanted else f"{found}, not {wanted}")
    _, (_, plain) = read(folder, kv_cache_dtype="bfloat16")
    same = len(vllm_engine.PROMPT) - 1  # what follows the prompt may be other tokens
    change = (with_fp8[:same] - plain[:same]).abs().mean().item()
    report.check(f"{layout}: vLLM generates with such a cache, log-probabilities differ by {change:.3f}",
                 None if 0 < change <= LOG_PROBABILITIES else "not within the error of e4m3")

    def doubled(tensors):
        tensors[f"model.layers.1.self_attn.{LAYOUTS[layout][1]}"] *= 2

    broken, _ = read(format_models.write_copy(folder, f"cache.{layout}.broken", doubled), kv_cache_dtype="fp8")
    report.check(f"{layout}: another scale of one layer's values is seen", "it is not" if broken == wanted else None)


def check(report):
    source = format_models.write_model("llama")
    statistics = format_models.record_inputs(source)
    for layout in LAYOUTS:
        report.section(layout, check_layout, source, statistics, layout)


if __name__ == "__main__":
    report = Report()
    format_models.start()
    report.section("cache", check)
    report.close()
