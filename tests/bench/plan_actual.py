#!/usr/bin/env python3
"""What `plan --measure` says of a job beside what the job then does: time, memory, sizes.

  tests/bench/plan_actual.py FOLDER [--model SRC STATS]… [--runs 3] [--ranks 1] [-- options of quantize]

Makes a drafter and a mixture of experts of random weights in FOLDER (a gigabyte each; later runs find them there) and takes
them beside the models that are named, a small language model for example. Plan and job alternate, so that a machine whose
speed drifts does not favour either; medians count. Prints one JSON object with a row for each model.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

from bench_support import safetensors_header

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from make_demo_drafter import write_torch_archive  # noqa: E402

HIDDEN, LAYERS, EXPERTS, EXPERT, HEADS, KV_HEADS, HEAD = 2048, 4, 32, 768, 16, 4, 128
VOCABULARY = 32000


def moe_tensors():
    """Name -> shape of a Qwen3-MoE model with those sizes, and input -> channels of what its statistics name."""
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN]}
    inputs = {}
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        for norm, size in (("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN), ("self_attn.q_norm", HEAD), ("self_attn.k_norm", HEAD)):
            shapes[f"model.{at}{norm}.weight"] = [size]
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            shapes[f"model.{at}self_attn.{name}_proj.weight"] = [heads * HEAD, HIDDEN]
        shapes[f"model.{at}self_attn.o_proj.weight"] = [HIDDEN, HEADS * HEAD]
        shapes[f"model.{at}mlp.gate.weight"] = [EXPERTS, HIDDEN]
        inputs |= {f"{at}self_attn.q_proj": HIDDEN, f"{at}self_attn.o_proj": HEADS * HEAD, f"{at}mlp.gate": HIDDEN}
        for expert in range(EXPERTS):
            for name, shape in (("gate", [EXPERT, HIDDEN]), ("up", [EXPERT, HIDDEN]), ("down", [HIDDEN, EXPERT])):
                shapes[f"model.{at}mlp.experts.{expert}.{name}_proj.weight"] = shape
            inputs[f"{at}mlp.experts.{expert}.down_proj"] = EXPERT
    return shapes, inputs


def make_moe(folder):
    """Such a model of random weights, tensor by tensor, and its statistics."""
    random = np.random.default_rng(7)
    model = folder / "model"
    model.mkdir(parents=True)
    shapes, inputs = moe_tensors()
    header, _ = safetensors_header(shapes)
    with open(model / "model.safetensors", "wb") as file:
        file.write(header)
        for shape in shapes.values():
            values = random.standard_normal(shape, np.float32) * np.float32(.02) + np.float32(len(shape) == 1)
            file.write((values.view("<u4") >> 16).astype("<u2").tobytes())
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
              "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCABULARY, "intermediate_size": 6144,
              "moe_intermediate_size": EXPERT, "num_experts": EXPERTS, "num_experts_per_tok": 4, "tie_word_embeddings": False}
    (model / "config.json").write_text(json.dumps(config))
    records = {}
    for name, size in inputs.items():
        absmean = np.exp(random.standard_normal(size)).astype("<f4")
        records[name] = {"absmean": absmean, "sqmean": 2 * absmean**2, "count": 4096}
    write_torch_archive(folder / "calib.tp0.pt", records)


def call(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout


def one_model(program, name, source, stats, work, arguments):
    out = work / "out"
    options = ["--stats", stats, *arguments.options]
    launcher = ["mpirun", "-np", arguments.ranks] if arguments.ranks > 1 else []
    told, found = [], []
    for run in range(arguments.runs + 1):
        shutil.rmtree(out, ignore_errors=True)
        estimate = json.loads(call(program, "plan", source, out, *options, "--measure", "--ranks", arguments.ranks, "--json"))
        call(*launcher, program, "quantize", source, out, *options, "--quiet")
        if run:  # the first warms the page cache
            told.append(estimate)
            found.append(json.loads((out / "quantmill_run.json").read_text()))
    files = {path.name: path.stat().st_size for path in out.glob("*.safetensors")}
    shutil.rmtree(out)
    peak = [max(record["peak_memory_bytes"]) for record in found]
    pairs = {"seconds": ([e["estimate"]["seconds"] for e in told], [record["seconds"] for record in found]),
             "peak_memory_bytes": ([e["estimate"]["of_each_rank"]["peak_memory_bytes"] for e in told], peak),
             "bytes_read": ([e["estimate"]["bytes_read"] for e in told], [record["bytes_read"] for record in found])}
    for phase in ("search", "write"):
        pairs["seconds of " + phase] = tuple(
            [next(entry["seconds"] for entry in phases if entry["name"] == phase) for phases in runs]
            for runs in ([e["estimate"]["phases"] for e in told], [record["phases"] for record in found]))
    row = {"model": name, "source_gb": round(told[0]["source_bytes"] / 1e9, 3),
           "sizes_exact": {entry["name"]: entry["bytes"] for entry in told[0]["files"]} == files,
           "limited_by": [told[-1]["estimate"]["limited_by"], found[-1]["limited_by"]]}
    for what, (planned, actual) in pairs.items():
        planned, actual = statistics.median(planned), statistics.median(actual)
        row[what] = {"planned": round(planned, 2), "actual": round(actual, 2), "ratio": round(planned / actual, 3) if actual else None}
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", nargs=2, action="append", default=[], metavar=("SRC", "STATS"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=1)
    words = sys.argv[1:] + ["--"]
    arguments = parser.parse_args(words[:words.index("--")])
    arguments.options = words[words.index("--") + 1:-1]
    program = os.environ.get("QUANTMILL", ROOT / "build" / "cpu" / "bin" / "quantmill")
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "drafter").exists():
        call(sys.executable, ROOT / "scripts" / "make_demo_drafter.py", folder, "--gigabytes", "1")
    if not (folder / "moe").exists():
        make_moe(folder / "moe")
    models = [(Path(source).name, source, stats) for source, stats in arguments.model]
    models += [("drafter", folder / "drafter", folder / "calib"), ("mixture of experts", folder / "moe" / "model", folder / "moe" / "calib")]
    rows = [one_model(program, name, source, stats, folder, arguments) for name, source, stats in models]
    print(json.dumps({"ranks": arguments.ranks, "options": arguments.options, "models": rows}, indent=1))


if __name__ == "__main__":
    main()
