"""Folding does not change what a model computes: every model family, in the classes of the library that defines it.

For each tiny model of tiny_models.py: quantmill folds strong random scales into its checkpoint without rounding, the
same class loads the result strictly, and the logits of random tokens are compared in float32. With scales that are
powers of two they must be equal to the bit. Then each tensor that was changed is put back by itself, each expert and
each half of a fused one: a control that the comparison must catch, or it could not have seen that part missing.

    check_folds.py [CASE ...]          all without an argument
"""

import os
import pathlib
import shutil
import sys

import torch
import transformers

import fold_controls
import folding
import mxfp4
import tiny_models
from report import Report

WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"]) / "folds"
TOKENS = (3, 40)  # sequences, tokens in each: every expert gets some
TOLERANCE = 1e-5  # relative; float32 rounds by 6e-8, some hundred times in a row
CAUGHT = 1e-3
ROUNDING = 0.25   # of a matrix by MXFP4; another matrix in its place is off by 1.4
# A norm with effect 1 + w stores (1 + w) / s - 1, which is rounded even if s is a power of two.
PLUS_ONE = ("gemma2", "gemma3", "qwen3-next", "qwen3.5")


def verdict(f32, pow2, is_exact, controls, strays):
    """What is wrong, or None."""
    missed = [what for what, change in controls.items() if change < CAUGHT]
    if strays:
        return f"changed and in no fold group, or the reverse: {', '.join(strays)}"
    if f32 > TOLERANCE or pow2 > (0 if is_exact else TOLERANCE):
        return "the folded model is another function"
    return f"not seen missing: {', '.join(missed)}" if missed else None


def row(case, model, architecture, num_tensors, groups, f32, pow2, controls):
    """A line of the table of families. controls: part -> how far off the output was with the original's in its place."""
    caught = sum(change >= CAUGHT for change in controls.values())
    return (f"{case:<20} {type(model).__name__:<35} {architecture:<13} {num_tensors:>3} tensors {len(groups):>2} groups  "
            f"f32 {f32:.0e}  pow2 {pow2:.0e}  controls {caught}/{len(controls)}, smallest {min(controls.values()):.2f}")


def check_rounding(report, case, folded, groups):
    """MXFP4 of the same folds: each quantized part is the folded one, rounded, so names and rows are right."""
    quantized = folding.quantize(WORK / case, groups)
    folder = quantized.with_name(case + "-dequantized")
    mxfp4.write_dequantized(quantized, folder, case in tiny_models.READ_STACKED,
                            type(folded).__name__ in fold_controls.TRANSPOSED)
    copy = tiny_models.load(folder, type(folded))
    errors = fold_controls.part_errors(folded, copy)
    wrong = [what for what, error in errors.items() if error > ROUNDING]
    report.check(f"{case:<20} {'':<35} mxfp4: {len(errors)} parts rounded, worst relative error "
                 f"{max(errors.values()):.2f}", f"not the folded ones: {', '.join(wrong)}" if wrong else None)


def check_case(report, case):
    source = WORK / case
    model = tiny_models.build(case)
    tiny_models.save(case, model, source)
    tokens = torch.randint(3, tiny_models.VOCABULARY, TOKENS, generator=torch.Generator().manual_seed(1))
    wanted = fold_controls.outputs(model, tokens)
    plan, groups = folding.plan(source)
    folded = folding.fold(source, groups)
    copy = tiny_models.load(folded, type(model))
    exact = tiny_models.load(folding.fold(source, groups, "--fold-scales", "pow2"), type(model))
    f32 = fold_controls.difference(fold_controls.outputs(copy, tokens), wanted)
    pow2 = fold_controls.difference(fold_controls.outputs(exact, tokens), wanted)
    found = fold_controls.controls(model, copy, tokens, wanted)
    num_tensors = len({tensor["source"].split("[")[0] for tensor in plan["tensors"]})
    report.check(row(case, model, plan["architecture"], num_tensors, groups, f32, pow2, found),
                 verdict(f32, pow2, plan["architecture"] not in PLUS_ONE, found,
                         folding.unexpected_changes(source, folded, groups)))
    check_rounding(report, case, copy, groups)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    report = Report()
    for case in sys.argv[1:] or [*tiny_models.CASES, *tiny_models.STACKED]:
        report.section(case, check_case, case)
    report.close()
