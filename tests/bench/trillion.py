#!/usr/bin/env python3
"""What a model of a trillion parameters costs before and beside its weights: plans, tasks, the files of a job, statistics.

  tests/bench/trillion.py FOLDER [--stats-layers 6] [--ranks 1,8] [--json FILE]

FOLDER must be on a file system that claims 2 TB of room, none of which is used: a tmpfs with size=3T for example.
  plan      of Kimi-K2's header (tests/golden/families): 69,975 tensors and a hole; also with --target-size, by a made-up table of errors
  files     a job on a model of the same names whose tensors are small: its index, manifest, scales and journal, and how long rank 0
            takes after the last phase, on 1 rank and on more
  merge     `stats merge` of two files that have mean |x| and E[x^2] of all 384 experts of a few layers (7168 and 2048 channels)
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np

from bench_support import PROGRAM, ROOT, launch, machine, measured, safetensors_header, write_json

sys.path.insert(0, str(ROOT / "tests" / "support"))
from family_headers import save_sparse, shapes_of  # noqa: E402

FAMILY = ROOT / "tests" / "golden" / "families" / "kimi-k2.json"
SMALL = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
         "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32, "vocab_size": 64}


def plan(model, *options):
    seconds, cpu, peak, said = measured([PROGRAM, "plan", model, model.parent / "out", "--scaling", "none", *options, "--json"])
    return {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "peak_mb": round(peak)}, json.loads(said)


def make_table(model, path, target):
    """A table of errors for the model, made up: what it must say it was measured for is asked of the program."""
    errors = {"mxfp4": .012, "mxfp6-e2m3": .001, "fp8-channel": .0007}
    random = np.random.default_rng(5)
    tensors = {}
    for name, shape in shapes_of(FAMILY).items():
        factor = float(random.uniform(.5, 2))
        tensors[name] = {"energy": 1, "errors": {scheme: factor * error for scheme, error in errors.items()}}
    inputs = {}
    while True:
        path.write_text(json.dumps({"error_table_schema": 1, "inputs": inputs, "tensors": tensors}))
        done = subprocess.run([PROGRAM, "plan", model, model.parent / "out", "--scaling", "none", "--target-size", target, "--error-table", path],
                              capture_output=True, text=True, check=False)
        found = re.search(r"something else: (.*) was not there, is (.*); give another name", done.stderr)
        if not found:
            return
        inputs[found[1]] = found[2]


def plans(folder):
    model = save_sparse(folder / "trillion", FAMILY)
    plain, what = plan(model)
    rows = {"plan": plain | {"source_gb": round(what["source_bytes"] / 1e9), "tensors": len(what["tensors"])}}
    table = folder / "errors.json"
    make_table(model, table, "700G")
    rows["plan --target-size 700G"], _ = plan(model, "--target-size", "700G", "--error-table", table)
    return rows


def small_model(folder):
    """The model's names with small tensors, in 62 shards."""
    family = json.loads(FAMILY.read_text())
    large, config = family["config"], family["config"] | SMALL
    heads = lambda c: c["num_attention_heads"]  # noqa: E731
    sizes = {large[key]: config[key] for key in SMALL}
    sizes |= {heads(large) * (large["qk_nope_head_dim"] + large["qk_rope_head_dim"]): heads(config) * 64,
              heads(large) * (large["qk_nope_head_dim"] + large["v_head_dim"]): heads(config) * 64,
              heads(large) * large["v_head_dim"]: heads(config) * 32, large["kv_lora_rank"] + large["qk_rope_head_dim"]: 64,
              large["n_routed_experts"]: large["n_routed_experts"]}
    shapes = {name: [sizes[dimension] for dimension in shape] for name, shape in shapes_of(FAMILY).items()}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    values = np.random.default_rng(7).standard_normal(1 << 14, np.float32) * np.float32(.02)
    block = (values.view("<u4") >> 16).astype("<u2").tobytes()
    shards = {}
    for name in shapes:
        layer = re.search(r"layers\.(\d+)\.", name)
        shards.setdefault(int(layer[1]) if layer else 61, []).append(name)
    weight_map = {}
    for number, names in sorted(shards.items()):
        header, end = safetensors_header({name: shapes[name] for name in names})
        file_name = f"model-{number + 1:05}-of-00062.safetensors"
        with open(folder / file_name, "wb") as file:
            file.write(header)
            for begin in range(0, end, len(block)):
                file.write(block[:end - begin])
        weight_map |= {name: file_name for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def journal_bytes(out, work):
    """The largest that the journal became while the job ran."""
    largest = 0
    while work.poll() is None:
        found = sum(path.stat().st_size for path in out.parent.glob(f".{out.name}.quantmill-work/journal.*") if path.exists())
        largest = max(largest, found)
        time.sleep(.01)
    return largest


def files(folder, counts):
    model = small_model(folder / "small")
    out = folder / "small-out"
    rows = {}
    for ranks in counts:
        words = [str(word) for word in [*launch(ranks), PROGRAM, "quantize", model, out, "--scaling", "none", "--threads", 1, "--quiet"] if word != "--"]
        begun = time.monotonic()
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as work:
            journal = journal_bytes(out, work)
        seconds = time.monotonic() - begun
        record = json.loads((out / "quantmill_run.json").read_text())
        rows[f"{ranks} ranks"] = {
            "seconds": round(seconds, 2), "phases": {entry["name"]: round(entry["seconds"], 2) for entry in record["phases"]},
            "after_the_phases": round(seconds - sum(entry["seconds"] for entry in record["phases"]), 2),
            "peak_mb": round(max(record["peak_memory_bytes"]) / 2**20), "journal_bytes": journal,
            "bytes": {path.name: path.stat().st_size for path in sorted(out.iterdir()) if not path.name.endswith(".safetensors")}}
        shutil.rmtree(out)
    return rows


def save_experts(path, layers, seed):
    random = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        file.attrs["quantmill_kind"] = "statistics"
        file.attrs["quantmill_schema"] = np.int64(1)
        file.attrs["quantmill_version"] = "0"
        inputs = file.create_group("inputs")
        for layer in range(layers):
            for expert in range(384):
                for name, channels in (("gate_proj", 7168), ("down_proj", 2048)):
                    group = inputs.create_group(f"layers.{layer}.mlp.experts.{expert}.{name}")
                    group.attrs["count"] = np.uint64(1000)
                    group.attrs["partition"] = "replicated"
                    group.attrs["source"] = "bench"
                    absmean = random.random(channels) + .1
                    group["absmean"] = absmean
                    group["sqmean"] = 2 * absmean**2


def merge(folder, layers):
    first, second, merged = folder / "a.h5", folder / "b.h5", folder / "ab.h5"
    save_experts(first, layers, 1)
    save_experts(second, layers, 2)
    seconds, _, peak, _ = measured([PROGRAM, "stats", "merge", first, second, "-o", merged])
    found = {"layers": layers, "inputs": layers * 768, "file_mb": round(first.stat().st_size / 1e6), "seconds": round(seconds, 2), "peak_mb": round(peak)}
    for path in (first, second, merged):
        path.unlink()
    return found | {"of 60 layers: seconds": round(seconds * 60 / layers), "of 60 layers: peak_gb": round(peak * 60 / layers / 1e3, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", default="1,8")
    parser.add_argument("--stats-layers", type=int, default=6)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    if os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize < 2e12:
        parser.error(f"{folder} claims less than 2 TB of room, and plans refuse what has no room")
    found = {"machine": machine(folder)}
    try:
        found["plans"] = plans(folder)
        found["files"] = files(folder, [int(count) for count in arguments.ranks.split(",")])
        found["merge"] = merge(folder, arguments.stats_layers)
    finally:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_json(arguments.json, found)


if __name__ == "__main__":
    main()
