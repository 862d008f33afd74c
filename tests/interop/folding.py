"""Folds that quantmill makes with given scales and without rounding, and which tensors they change."""

import json
import os
import subprocess
import zlib

import h5py
import numpy as np
import torch
from safetensors.torch import load_file

QUANTMILL = os.environ["QUANTMILL"]
PLAIN = ("--layout", "plain", "--scheme", "f32")
SPREAD = 0.7  # of the logarithm of s


def quantmill(*arguments):
    done = subprocess.run([QUANTMILL, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"quantmill {' '.join(map(str, arguments))} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def write_scales(path, groups):
    """Random scales for fold groups, as the program stores those that it chose. `groups`: name -> channels."""
    with h5py.File(path, "w") as file:
        file.attrs["quantmill_kind"] = np.bytes_("scales")
        file.attrs["quantmill_schema"] = np.int64(1)
        file.attrs["quantmill_version"] = np.bytes_("test")
        for name, channels in groups.items():
            random = np.random.default_rng(zlib.crc32(name.encode()))
            group = file.create_group("groups/" + name.replace("%", "%25").replace("/", "%2F"))
            group["s"] = np.exp(SPREAD * random.standard_normal(channels)).astype(np.float32)
            group["alphas"] = group["errors"] = np.zeros(0)
            group.attrs["alpha"] = np.nan
            group.attrs["reason"] = np.bytes_("")


def plan(source):
    """(the program's plan, those of its fold groups that can take a scale)"""
    found = json.loads(quantmill("plan", source, source.with_name("none"), *PLAIN, "--scaling", "none", "--json"))
    return found, [group for group in found["fold_groups"] if group["no_fold"] is None]


def fold(source, groups, *options):
    """The folder of the folded checkpoint, every group scaled at random."""
    return run(source, groups, "-".join(["folded", *options]).replace("--", ""), *PLAIN, *options)


def quantize(source, groups):
    """The same folds, rounded to MXFP4."""
    return run(source, groups, "mxfp4")


def run(source, groups, name, *options):
    scales = source.with_name(source.name + ".h5")
    write_scales(scales, {group["name"]: group["channels"] for group in groups})
    out = source.with_name(f"{source.name}-{name}")
    quantmill("quantize", source, out, "--scales", scales, *options)
    return out


def unexpected_changes(source, folded, groups):
    """Tensors that differ though no fold group names them, or do not differ though one does."""
    named = {name.split("[")[0] for group in groups for name in group["producers"] + group["readers"]}
    before, after = (load_file(folder / "model.safetensors") for folder in (source, folded))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    biases = {name.removesuffix("weight") + "bias" for name in named}
    return sorted((changed - named - biases) | (named - changed))
