#!/usr/bin/env python3
"""How a job's time and memory grow: with ranks, with the size of the model, with the number of its tensors.

  tests/bench/scaling.py FOLDER [--ranks 1,2,4,8] [--sizes 0.5,1,2,4,8] [--tensors 100,1000,10000,100000] [--memory 64M,256M,1G]
                         [--runs 3] [--json FILE] [--table FILE]

Models are made in FOLDER, one after the other, and removed. Each is run once to warm the page cache, then --runs times; medians.
An empty list leaves a part out. More ranks than cores are to show that nothing collapses.
"""
import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path

import numpy as np

from bench_support import PROGRAM, describe, launch, machine, make_drafter, measured, safetensors_header, write_json

HIDDEN, LAYERS = 64, 8
NEAREST, DEFAULT = "round to nearest", "default"


def make_experts(folder, tensors, gigabytes):
    """A mixture of experts in which about so many tensors have the same bytes together."""
    model = folder / "model"
    model.mkdir(parents=True)
    experts = max(2, round(tensors / 3 / LAYERS))
    inner = max(32, round(gigabytes * 1e9 / 2 / (3 * LAYERS * experts) / HIDDEN / 32) * 32)
    shapes = {"model.embed_tokens.weight": [64, HIDDEN], "lm_head.weight": [64, HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}{norm}_layernorm.weight": [HIDDEN] for norm in ("input", "post_attention")}
        shapes |= {f"{at}self_attn.{norm}_norm.weight": [32] for norm in "qk"}
        shapes |= {f"{at}self_attn.{name}_proj.weight": [64, HIDDEN] for name in "qkv"}
        shapes |= {f"{at}self_attn.o_proj.weight": [HIDDEN, 64], f"{at}mlp.gate.weight": [experts, HIDDEN]}
        for expert in range(experts):
            name = f"{at}mlp.experts.{expert}."
            shapes |= {f"{name}gate_proj.weight": [inner, HIDDEN], f"{name}up_proj.weight": [inner, HIDDEN],
                       f"{name}down_proj.weight": [HIDDEN, inner]}
    header, end = safetensors_header(shapes)
    values = np.random.default_rng(7).standard_normal(1 << 22, np.float32) * np.float32(.02)
    block = (values.view("<u4") >> 16).astype("<u2").tobytes()
    with open(model / "model.safetensors", "wb") as file:
        file.write(header)
        for begin in range(0, end, len(block)):
            file.write(block[:end - begin])
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
              "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 64, "intermediate_size": 64,
              "moe_intermediate_size": inner, "num_experts": experts, "num_experts_per_tok": 2, "tie_word_embeddings": False}
    (model / "config.json").write_text(json.dumps(config))
    return model, len(shapes), end


class Jobs:
    def __init__(self, folder, runs):
        self.folder = folder
        self.runs = runs

    def run(self, source, options, ranks=1, memory="512M"):
        """Medians of seconds, the largest rank in MB, and the seconds of each phase."""
        out = self.folder / "out"
        seconds, used, peaks, phases = [], [], [], []
        for run in range(self.runs + 1):
            took, cpu, peak, _ = measured([*launch(ranks), PROGRAM, "quantize", source, out, *options, "--threads", 1, "--memory", memory, "--quiet"])
            if run:
                seconds.append(took)
                used.append(cpu)
                peaks.append(peak)
                phases.append({entry["name"]: entry["seconds"] for entry in json.loads((out / "quantmill_run.json").read_text())["phases"]})
            shutil.rmtree(out)
        median = statistics.median(seconds)
        print(f"{source.parent.name} {' '.join(map(str, options))} {ranks} ranks {memory}: {median:.2f} s {max(peaks):.0f} MB", file=sys.stderr)
        return {"seconds": round(median, 3), "cpu_seconds": round(statistics.median(used), 2), "peak_mb": round(max(peaks), 1),
                "phases": {name: round(statistics.median(found[name] for found in phases), 3) for name in phases[0]}}


def nearest():
    return ["--scaling", "none"]


def default(folder):
    return ["--stats", folder / "calib"]


def over_ranks(jobs, counts, gigabytes):
    folder = jobs.folder / "ranks"
    source = make_drafter(folder, gigabytes)
    rows = [{"ranks": ranks, "what": what} | jobs.run(source, options, ranks)
            for what, options in ((NEAREST, nearest()), (DEFAULT, default(folder))) for ranks in counts]
    shutil.rmtree(folder)
    return rows


def over_sizes(jobs, sizes, largest_default):
    rows = []
    for gigabytes in sizes:
        folder = jobs.folder / "size"
        source = make_drafter(folder, gigabytes)
        size = (source / "model.safetensors").stat().st_size / 1e9
        for what, options in ((NEAREST, nearest()), (DEFAULT, default(folder))):
            if what == NEAREST or gigabytes <= largest_default:
                row = {"gb": round(size, 3), "what": what} | jobs.run(source, options)
                rows.append(row | {"seconds_per_gb": round(row["seconds"] / size, 3), "cpu_seconds_per_gb": round(row["cpu_seconds"] / size, 3)})
        shutil.rmtree(folder)
    return rows


def over_tensors(jobs, counts, gigabytes):
    rows = []
    for count in counts:
        folder = jobs.folder / "tensors"
        source, tensors, size = make_experts(folder, count, gigabytes)
        rows.append({"tensors": tensors, "gb": round(size / 1e9, 3)} | jobs.run(source, nearest()))
        shutil.rmtree(folder)
    if len(rows) > 1:  # what a tensor costs beyond its bytes
        for row in rows[1:]:
            row["cpu_microseconds_per_tensor"] = round(1e6 * (row["cpu_seconds"] - rows[0]["cpu_seconds"]) / (row["tensors"] - rows[0]["tensors"]), 1)
    return rows


def over_memory(jobs, limits, gigabytes):
    folder = jobs.folder / "memory"
    source = make_drafter(folder, gigabytes)
    rows = []
    for limit in limits:
        for what, options in ((NEAREST, nearest()), (DEFAULT, default(folder))):
            try:
                rows.append({"memory": limit, "what": what} | jobs.run(source, options, memory=limit))
            except SystemExit as refused:  # too little for this model: the program says how much it needs
                rows.append({"memory": limit, "what": what, "refused": str(refused).splitlines()[-1]})
    shutil.rmtree(folder)
    return rows


def table(found):
    lines = [f"{describe(found['machine'])}. Medians of {found['runs']}; one thread a rank."]
    for title, rows in (("ranks", found["ranks"]), ("size of the model, 1 rank", found["sizes"]), ("number of tensors, 1 rank", found["tensors"]),
                        ("`--memory`, 1 rank", found["memory"])):
        if rows:
            names = [name for name in rows[-1] if name != "phases"]
            lines += ["", f"By {title}:", "", "| " + " | ".join(name.replace("_", " ") for name in names) + " |", "|---" * len(names) + "|"]
            lines += ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--sizes", default="0.5,1,2,4,8")
    parser.add_argument("--tensors", default="100,1000,10000,100000")
    parser.add_argument("--memory", default="64M,256M,1G")
    parser.add_argument("--gigabytes", type=float, default=1, help="of the model that is run on ranks and with less memory")
    parser.add_argument("--tensor-gigabytes", type=float, default=.5)
    parser.add_argument("--largest-default", type=float, default=2, help="GB up to which the search is run too")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    jobs = Jobs(arguments.folder, arguments.runs)
    listed = lambda text, kind: [kind(part) for part in text.split(",") if part]  # noqa: E731
    found = {"machine": machine(arguments.folder), "runs": arguments.runs, "ranks": [], "sizes": [], "tensors": [], "memory": []}
    if arguments.ranks:
        found["ranks"] = over_ranks(jobs, listed(arguments.ranks, int), arguments.gigabytes)
    if arguments.sizes:
        found["sizes"] = over_sizes(jobs, listed(arguments.sizes, float), arguments.largest_default)
    if arguments.tensors:
        found["tensors"] = over_tensors(jobs, listed(arguments.tensors, int), arguments.tensor_gigabytes)
    if arguments.memory:
        found["memory"] = over_memory(jobs, listed(arguments.memory, str), arguments.gigabytes)
    if arguments.table:
        arguments.table.write_text(table(found))
    write_json(arguments.json, found)


if __name__ == "__main__":
    main()
