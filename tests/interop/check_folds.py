"""Folding does not change what a model computes: every model family, in the classes of the library that defines it.

For each tiny model of tiny_models.py: quantmill folds strong random scales into its checkpoint without rounding, the same
class loads the result strictly, and the logits of random tokens are compared in float32. With scales that are powers of
two they must be equal to the bit. Then each tensor that was changed is put back by itself, each expert and each half
of a fused one: a control that the comparison must catch, or it could not have seen that part missing.

    check_folds.py [CASE …]          all without an argument
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import zlib

import h5py
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

import fold_controls
import tiny_models
from report import Report

QUANTMILL = os.environ["QUANTMILL"]
WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"]) / "folds"
TOKENS = (3, 40)  # sequences, tokens in each: every expert gets some
SPREAD = 0.7      # of the logarithm of s
TOLERANCE = 1e-5  # relative; float32 rounds by 6e-8, some hundred times in a row
CAUGHT = 1e-3
# A norm with effect 1 + w stores (1 + w) / s - 1, which is rounded even if s is a power of two.
PLUS_ONE = ("gemma2", "gemma3", "qwen3-next", "qwen3.5")


def quantmill(*arguments):
    done = subprocess.run([QUANTMILL, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"quantmill {' '.join(map(str, arguments))} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def write_scales(path, groups):
    """Random scales for fold groups, as the program stores those that it chose. `groups`: name -> channels."""
    with h5py.File(path, "w") as file:
        file.attrs["quantmill_kind"] = "scales"
        file.attrs["quantmill_schema"] = np.int64(1)
        file.attrs["quantmill_version"] = "test"
        for name, channels in groups.items():
            random = np.random.default_rng(zlib.crc32(name.encode()))
            group = file.create_group("groups/" + name.replace("%", "%25").replace("/", "%2F"))
            group["s"] = np.exp(SPREAD * random.standard_normal(channels)).astype(np.float32)
            group["alphas"] = group["errors"] = np.zeros(0)
            group.attrs["alpha"] = np.nan
            group.attrs["reason"] = ""


def fold(source, scales, *options):
    out = source.with_name(source.name + "-" + "-".join(["folded", *options]).replace("--", ""))
    shutil.rmtree(out, ignore_errors=True)
    quantmill("quantize", source, out, "--layout", "plain", "--scheme", "f32", "--scales", scales, *options)
    return out


def unexpected_changes(source, folded, groups):
    """Tensors that differ though no fold group names them, or do not differ though one does."""
    named = {name.split("[")[0] for group in groups for name in group["producers"] + group["readers"]}
    before, after = (load_file(folder / "model.safetensors") for folder in (source, folded))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    biases = {name.removesuffix("weight") + "bias" for name in named}
    return sorted((changed - named - biases) | (named - changed))


def prove(case):
    """What was measured of the case, and what is wrong with it (None: nothing)."""
    source = WORK / case
    model = tiny_models.build(case)
    tiny_models.save(case, model, source)
    tokens = torch.randint(3, tiny_models.VOCABULARY, TOKENS, generator=torch.Generator().manual_seed(1))
    wanted = fold_controls.outputs(model, tokens)

    plan = json.loads(quantmill("plan", source, WORK / "none", "--layout", "plain", "--scheme", "f32",
                                "--scaling", "none", "--json"))
    groups = [group for group in plan["fold_groups"] if group["no_fold"] is None]
    scales = WORK / f"{case}.h5"
    write_scales(scales, {group["name"]: group["channels"] for group in groups})
    folded = fold(source, scales)
    copy = tiny_models.load(folded, type(model))
    exact = tiny_models.load(fold(source, scales, "--fold-scales", "pow2"), type(model))

    f32 = fold_controls.difference(fold_controls.outputs(copy, tokens), wanted)
    pow2 = fold_controls.difference(fold_controls.outputs(exact, tokens), wanted)
    found = dict(fold_controls.controls(model, copy, tokens, wanted))
    missed = [what for what, change in found.items() if change < CAUGHT]
    weakest = min(found, key=found.get)
    measured = (f"{case:<22} {type(model).__name__:<36} {plan['architecture']:<14} {len(plan['tensors']):>4} tensors "
                f"{len(groups):>3} groups  f32 {f32:.0e}  pow2 {pow2:.0e}  controls {len(found) - len(missed)}/"
                f"{len(found)}, smallest {found[weakest]:.2f}")
    strays = unexpected_changes(source, folded, groups)
    wrong = None
    if strays:
        wrong = f"changed and not in a group, or the reverse: {', '.join(strays)}"
    elif f32 > TOLERANCE or pow2 > (TOLERANCE if plan["architecture"] in PLUS_ONE else 0):
        wrong = "the folded model is another function"
    elif missed:
        wrong = f"not seen missing: {', '.join(missed)}"
    return measured, wrong


def check_case(report, case):
    report.check(*prove(case))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    report = Report()
    for case in sys.argv[1:] or [*tiny_models.CASES, *tiny_models.STACKED]:
        report.section(case, check_case, case)
    report.close()
