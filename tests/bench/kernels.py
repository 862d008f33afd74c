#!/usr/bin/env python3
"""Weights per second of every kernel on one core, for each instruction set, beside memcpy of as many floats in the same run.

  tests/bench/kernels.py [--repetitions 3] [--filter REGEX] [--json FILE] [--table FILE]

Runs kernels_bench, which the build has where Google Benchmark is installed. Medians of the repetitions.
"""
import argparse
import json
import re
import subprocess
from pathlib import Path

from bench_support import PROGRAM, describe, machine, write_json

MEMCPY = "memcpy of floats/libc"
ISAS = ("plain", "avx2", "avx512")


def measure(repetitions, wanted):
    """Kernel -> instruction set -> G weights/s, and the floats that memcpy copies."""
    said = subprocess.run([PROGRAM.parent / "kernels_bench", f"--benchmark_filter=^({MEMCPY}|.*({wanted}).*/({'|'.join(ISAS)}))$",
                           f"--benchmark_repetitions={repetitions}", "--benchmark_min_time=0.1", "--benchmark_format=json"], check=True, capture_output=True, text=True).stdout
    medians = {run["run_name"]: 1e-9 * run["items_per_second"] for run in json.loads(said)["benchmarks"] if run.get("aggregate_name") == "median"}
    kernels = {}
    for name, rate in medians.items():
        if name != MEMCPY:
            kernel, isa = name.rsplit("/", 1)
            kernels.setdefault(kernel, {})[isa] = round(rate, 2)
    return kernels, round(medians[MEMCPY], 2)


def table(found):
    isas = [isa for isa in ISAS if isa in next(iter(found["kernels"].values()))]
    lines = [f"{describe(found['machine'])}. G weights/s of one core; memcpy copies {found['memcpy']} G floats/s in the same run.", "",
             "| kernel | " + " | ".join(isas) + " | to memcpy |", "|---" + "|--:" * (len(isas) + 1) + "|"]
    for kernel, rates in sorted(found["kernels"].items()):
        lines.append(f"| `{kernel}` | " + " | ".join(f"{rates[isa]:.2f}" for isa in isas) + f" | {rates[isas[-1]] / found['memcpy']:.2f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3, help="2 or more (default 3)")
    parser.add_argument("--filter", default="", type=lambda text: re.compile(text).pattern)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    kernels, memcpy = measure(arguments.repetitions, arguments.filter)
    found = {"machine": machine(Path.cwd()), "memcpy": memcpy, "kernels": kernels}
    if arguments.table:
        arguments.table.write_text(table(found))
    write_json(arguments.json, found)


if __name__ == "__main__":
    main()
