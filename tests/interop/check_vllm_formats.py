"""vLLM's engine on every format that quantmill writes: the weights that it multiplies by, and the tokens it makes.

FP8 by channel and INT8 run in vLLM's own kernels for a CPU, INT4 too where the CPU has AVX-512; for the rest
vllm_kernels.py says what stands in. vLLM 0.32 has no kernels for quantized experts on a CPU.
"""

import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than all that is computed here
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch

import format_models
import format_readers
import vllm_cache
import vllm_engine
from report import Report

# BF16 rounds by 2^-9, and vLLM's kernel for INT8 rounds twice; a row in 2^14 that is missing is seen.
TOLERANCE = 2**-7
# Mean difference of log-probabilities from those of the decoded weights in float32. Measured once: 0.37, 0.09, 0.13,
# 0.08, 0.09 where activations are quantized, and 0.01 where only BF16 rounds.
LOG_PROBABILITIES = {"mxfp4": 0.6, "mxfp6-e2m3": 0.2, "mxfp6-e3m2": 0.3, "mxfp8": 0.05, "nvfp4": 0.05,
                     "nvfp4:inputs": 0.6, "fp8-tensor": 0.2, "fp8-tensor:inputs": 0.2, "fp8-channel": 0.2,
                     "fp8-block": 0.05, "int8": 0.2, "w8a16": 0.05, "w8a16-g128": 0.05, "int4-g128": 0.05,
                     "int4-g32": 0.05, "int4-asym-g128": 0.05, "mxfp4+fp8-channel": 0.6,
                     "int4-g128+fp8-channel": 0.2}
# One of each layout, to see that faults are seen; of schemes whose scales vLLM fills with a mark before it loads them,
# so that one that is missing in a fused linear is seen.
WITH_FAULTS = (("fp8-channel", "compressed-tensors"), ("fp8-channel", "quark"), ("fp8-block", "fp8"),
               ("fp8-tensor:inputs", "compressed-tensors"))


def differing(values, wanted):
    """None, or which linears have other weights."""
    names = sorted(name for name in values.keys() | wanted.keys() if name not in values or name not in wanted
                   or not (values[name] - wanted[name]).norm() <= TOLERANCE * wanted[name].norm())
    return f"other values in {', '.join(names[:3])}" if names else None


def problem(folder, wanted):
    try:
        return differing(vllm_engine.read(folder)[0], wanted)
    except Exception as error:  # whatever vLLM throws is its way to refuse
        return f"refused, {type(error).__name__}: {' '.join(str(error).split())[:90]}"


@torch.no_grad()
def reference(source, wanted, tokens):
    """The log-probability of each token but the first, by transformers with the decoded weights."""
    plain = format_models.write_plain(source, wanted, "plain")
    model, _ = format_readers.load_with_transformers(plain, torch.float32)
    every = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
    return every.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


def check_target(report, table, source, scheme, layout):
    folder = format_models.write_target(source, scheme, layout)
    wanted, quantized = format_models.expected(folder, source, scheme)
    linears = {name: value for name, value in wanted.items() if name.endswith("_proj.weight")}
    what = f"{scheme} {layout}: vLLM"
    values, (tokens, found) = vllm_engine.read(folder, with_tokens=True)
    wrong = differing(values, linears)
    report.check(f"{what} multiplies by the weights of {len(linears)} linears, {len(quantized)} of them as decoded",
                 wrong)
    change = (found - reference(source, wanted, tokens)).abs().mean().item()
    limit = LOG_PROBABILITIES[scheme]
    is_near = change <= limit  # a NaN is not
    report.check(f"{what} generates {vllm_engine.NUM_TOKENS} tokens, log-probabilities differ by {change:.3f}",
                 None if is_near else f"more than {limit}")
    table.append((scheme, layout, wrong or "as decoded", f"{change:.3f}"))
    report.cell(f"{scheme} {layout}", "vLLM", f"{wrong or 'weights as decoded'}, generates{'' if is_near else ' other tokens'}")
    if (scheme, layout) in WITH_FAULTS:
        format_models.check_faults(report, what, folder, lambda broken: problem(broken, linears))


def check_targets(report):
    source = format_models.write_model("llama")
    table = [("scheme", "layout", "weights", "log-probabilities")]
    for scheme, layout in format_models.TARGETS:
        report.section(f"vLLM {scheme} {layout}", check_target, table, source, scheme, layout)
    report.table("Targets in vLLM", table)


if __name__ == "__main__":
    report = Report()
    format_models.start()
    report.section("vLLM", check_targets)
    report.section("vLLM's cache", vllm_cache.check)
    report.close()
