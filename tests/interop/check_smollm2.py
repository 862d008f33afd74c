"""A real model, SmolLM2-135M, in every scheme that quantmill writes: transformers and vLLM give a text the probabilities that
the decoded weights give it, up to the rounding of activations, and what vLLM generates is English and true.

Its 576 columns are not whole groups of 128, so of such schemes the layers with 1536 are shown, beside FP8. Blocks of FP8 are
ragged here, for which transformers 5.17 and compressed-tensors 0.17 compute wrong sizes, and vLLM wrong places where it fuses
linears (q, k and v); quantmill says so. What stands in for kernels that vLLM has for GPUs only is in vllm_kernels.py. The layouts that a
scheme has besides the one here are shown on small models in check_formats.py and check_vllm_formats.py.
"""

import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than all that is computed here
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import pathlib
import shutil

import numpy as np
import torch
import transformers

import format_models
import format_readers
import vllm_engine
from folding import quantmill
from report import Report

SOURCE = pathlib.Path(os.environ["QUANTMILL_INTEROP_SMOLLM2"])
TOKENS = np.load(pathlib.Path(__file__).parent.parent / "quality" / "tokens.npz")  # of the model's tokenizer
TEXT = TOKENS["evaluation"][0][:96].tolist()  # from the constitution of the USA
CALIBRATION = torch.from_numpy(TOKENS["calibration"][:4, :128].astype("int64"))
PROMPT, ANSWER = "The capital of France is", " Paris"
NUM_TOKENS = 8
# Mean over the text. Log of the vocabulary's size, as of random letters, is 10.8; the original weights have 2.97.
LIKELIHOOD = 3.6
LIKELIHOOD_WITH_FP4_ACTIVATIONS = 4.3  # which is as much as so small a model bears: it does not know the answer any more
STATIC = ("--scaling", "none", "--input-scales", "static")
# Scheme, layout, options, and how far the mean difference of log-probabilities from those of the decoded weights in float32 may be,
# in transformers and in vLLM: some half more than measured once. BF16 alone makes 0.06 in vLLM. None: see above.
TARGETS = (("mxfp4", "quark", ("--scaling", "block-grid"), 1.2, 1.4),
           ("mxfp6-e2m3", "quark", (), 0.3, 0.35),
           ("mxfp8", "compressed-tensors", (), 0.3, 0.1),
           ("nvfp4", "compressed-tensors", STATIC, 0.9, 0.8),
           ("fp8-tensor", "quark", STATIC, 0.25, 0.25),
           ("fp8-channel", "compressed-tensors", (), 0.2, 0.3),
           ("fp8-block", "fp8", ("--keep", "*.self_attn.*"), None, 0.1),
           ("int8", "compressed-tensors", (), 0.4, 0.45),
           ("w8a16", "compressed-tensors", (), 0.05, 0.1),
           ("int4-g32", "quark", (), 0.02, 0.12),
           ("int4-asym-g32", "compressed-tensors", (), 0.02, 0.08),
           ("fp8-channel", "compressed-tensors", ("--scheme-for", "*.down_proj=int4-g128"), 0.25, 0.3))
WITH_FAULTS = ("int4-g32", "quark")  # activations stay as they are, so that a small change of weights is seen


def of_text(every):
    """The log-probability of each token of the text but the first, from those of all tokens."""
    return every[:-1].log_softmax(-1).gather(1, torch.tensor(TEXT[1:])[:, None])[:, 0]


def in_transformers(folder, dtype=None):
    dtype = dtype or format_readers.dtype_in_transformers(folder)
    return of_text(format_readers.load_with_transformers(folder, dtype, torch.tensor([TEXT]))[1][0])


def in_vllm(folder, prompt=None):
    """(log-probabilities of the text, the tokens that follow the prompt)"""
    with vllm_engine.engine(folder) as llm:
        found = vllm_engine.log_probabilities(llm, TEXT, 1)[1][:len(TEXT) - 1]
        return found, vllm_engine.log_probabilities(llm, prompt, NUM_TOKENS)[0][len(prompt):] if prompt else None


def convert(folder, statistics, scheme, layout, options):
    shutil.rmtree(folder, ignore_errors=True)
    kept = [option for pattern in format_models.KEPT for option in ("--keep", pattern)]
    command = ("quantize", SOURCE, folder, "--stats", statistics) if "--scaling" in options else ("convert", SOURCE, folder)
    quantmill(*command, "--scheme", scheme, "--layout", layout, *options, *kept)
    plain = folder.with_name("decoded")
    shutil.rmtree(plain, ignore_errors=True)
    quantmill("convert", folder, plain, "--scheme", "bf16")
    return in_transformers(plain, torch.float32)


def difference(found, reference):
    return (found - reference).abs().mean().item()


def check_near(report, what, found, reference, limit):
    """The cell of the table."""
    change = difference(found, reference)
    is_near = change <= limit  # a NaN is not
    report.check(f"{what}: log-probabilities differ by {change:.3f} from those of the decoded weights",
                 None if is_near else f"more than {limit}")
    return f"{change:.3f}"


def check_text(report, what, scheme, found, text):
    """What a wrong order of nibbles or scales that are off by one can't have."""
    in_fp4 = scheme in ("mxfp4", "nvfp4")
    loss, limit = -found.mean().item(), LIKELIHOOD_WITH_FP4_ACTIVATIONS if in_fp4 else LIKELIHOOD
    report.check(f"{what} gives the text {loss:.2f} per token", None if loss <= limit else f"more than {limit}")
    if not in_fp4:
        report.check(f"{what} goes on: {PROMPT}{text!r}", None if text.startswith(ANSWER) else f"not with {ANSWER}")


def problem(reader, folder, reference, limit):
    try:
        change = difference(reader(folder), reference)
    except Exception as error:  # whatever a reader throws is its way to refuse
        return f"refused, {type(error).__name__}"
    return None if change <= limit else f"differs by {change:.3f}"


def check_faults(report, what, reader, folder, reference, limit):
    missed = []
    for fault, (change_tensors, change_config, altered) in format_models.FAULTS.items():
        found = problem(reader, format_models.write_copy(folder, "broken", change_tensors, change_config), reference, limit)
        if found is None or (altered and not found.startswith("differs by")):
            missed.append(f"{fault} ({found or 'taken for the good one'})")
    report.check(f"{what}: sees {len(format_models.FAULTS) - len(missed)} of {len(format_models.FAULTS)} faults",
                 ", ".join(missed) or None)


def check_target(report, table, tokenizer, statistics, target):
    scheme, layout, options, transformers_limit, vllm_limit = target
    folder = format_models.WORK / "target"
    reference = convert(folder, statistics, scheme, layout, options)
    what = f"SmolLM2 {' '.join((scheme, layout, *options))}"
    cell = "-"
    if transformers_limit is not None:
        cell = check_near(report, f"{what}: transformers", in_transformers(folder), reference, transformers_limit)
    found, tokens = in_vllm(folder, tokenizer(PROMPT).input_ids)
    text = tokenizer.decode(tokens)
    near = check_near(report, f"{what}: vLLM", found, reference, vllm_limit)
    check_text(report, f"{what}: vLLM", scheme, found, text)
    table.append((scheme, layout, " ".join(options), cell, near, repr(text)))
    target_name = f"{scheme} {layout}" if "--scheme-for" not in options else f"{scheme} {layout} {options[-1]}"
    report.cell(target_name, "SmolLM2, transformers", f"text within {cell}" if cell != "-" else "not shown: ragged blocks")
    report.cell(target_name, "SmolLM2, vLLM", f"text within {near}, goes on{text!r}")
    if (scheme, layout) == WITH_FAULTS:
        check_faults(report, f"{what}: transformers", in_transformers, folder, reference, transformers_limit)
        check_faults(report, f"{what}: vLLM", lambda broken: in_vllm(broken)[0], folder, reference, vllm_limit)


def check_targets(report):
    tokenizer = transformers.AutoTokenizer.from_pretrained(SOURCE)
    statistics = format_models.record_inputs(SOURCE, CALIBRATION)
    table = [("scheme", "layout", "options", "transformers", "vLLM", f"{PROMPT} …")]
    for target in TARGETS:
        report.section(f"SmolLM2 {target[0]} {target[1]}", check_target, table, tokenizer, statistics, target)
    report.table("SmolLM2: log-probabilities' difference from the decoded weights", table)


if __name__ == "__main__":
    report = Report()
    format_models.start()
    report.section("SmolLM2", check_targets)
    report.close()
