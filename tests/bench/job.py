#!/usr/bin/env python3
"""The whole job beside what bounds it, and beside the programs that do the same: one run, the same files, the same page cache.

  tests/bench/job.py FOLDER [--gigabytes 1.1] [--runs 5] [--peers PYTHON] [--peer-runs 3] [--seed-script FILE]
                     [--json FILE] [--svg FILE] [--table FILE]

Makes a drafter of random weights in FOLDER (scripts/make_demo_drafter.py), whose file system is what is measured. Rows
alternate, so that a machine whose speed drifts does not favour any; medians count. Before each, what is unwritten is written.
The page cache is warm: a first round is not counted. The floors are
  read, write, sync   the source read, and as many bytes as the job's output has written and synced, 8 MiB at a time
  copy, sync          `cp` of the source, and fsync
PYTHON is a Python with amd-quark and llmcompressor (0.13 and 0.14.0.1 were tried); each peer that it lacks is left out, and
that is said. Peers get all cores. Their time is given with and without what passes before they begin (starting, imports).
CPU seconds are of all ranks and threads: where others use the machine they say more than seconds.
FILE is a script that quantizes SRC with CALIB to OUT on a device called "cuda", here the CPU; on a smaller drafter
(--seed-gigabytes), once, and its time is told per weight.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_support import PROGRAM, ROOT, describe, launch, machine, make_drafter, measured, summary, write_json

sys.path.append(str(ROOT / "tests" / "support"))
from pictures import bars  # noqa: E402

# Python that says "ready" with the time, once it has imported what it needs.
PEERS = {
    "amd-quark file2file": """
import sys, time
from quark.torch import ModelQuantizer, LLMTemplate
print("ready", time.time())
config = LLMTemplate.get("llama").get_config(scheme="mxfp4", exclude_layers=["lm_head", "*kernel_projection*", "*hidden_projection*"])
ModelQuantizer(config).direct_quantize_checkpoint(pretrained_model_path=sys.argv[1], save_path=sys.argv[2], device="cpu")
""",
    "llm-compressor model_free_ptq": """
import sys, time
from llmcompressor import model_free_ptq
print("ready", time.time())
model_free_ptq(model_stub=sys.argv[1], save_directory=sys.argv[2], scheme="MXFP4", device="cpu",
               ignore=["lm_head", "re:.*embed_tokens", "re:.*kernel_projection", "re:.*hidden_projection", "re:.*codebook"])
"""}
NEAREST, DEFAULT = "quantmill, round to nearest", "quantmill, default"
FLOOR, COPY = "read, write, sync", "copy, sync"


class Bench:
    def __init__(self, arguments, work):
        self.arguments = arguments
        self.work = work
        self.source = arguments.folder / "drafter"
        self.file = self.source / "model.safetensors"
        self.rows = {}  # name -> {"seconds": [...], "cpu": [...], "peak_mb": [...], "before": [...]}
        self.output_bytes = 0
        self.left_out = []

    def note(self, counts, name, seconds, cpu, peak=None, before=None):
        if counts:
            row = self.rows.setdefault(name, {"seconds": [], "cpu": [], "peak_mb": [], "before": []})
            row["seconds"].append(seconds)
            row["cpu"].append(cpu)
            row["peak_mb"] += [] if peak is None else [peak]
            row["before"] += [] if before is None else [before]
            print(f"{name:45} {seconds:8.2f} s {cpu:8.2f} of CPU", file=sys.stderr)

    def quantmill(self, counts, what, ranks, threads):
        out = self.work / "out"
        options = ["--scaling", "none"] if what == NEAREST else ["--stats", self.arguments.folder / "calib"]
        seconds, cpu, peak, _ = measured([*launch(ranks), PROGRAM, "quantize", self.source, out, *options, "--threads", threads,
                                     "--memory", self.arguments.memory, "--quiet"])
        self.output_bytes = (out / "model.safetensors").stat().st_size
        shutil.rmtree(out)
        how = f"{ranks} rank{'s' * (ranks > 1)}" + (f" of {threads} threads" if threads > 1 else "")
        self.note(counts, f"{what}, {how}", seconds, cpu, peak)

    def floor(self, counts):
        os.sync()
        target = self.work / "floor"
        begun, used = time.monotonic(), cpu_seconds()
        piece = bytearray(8 << 20)
        with open(self.file, "rb", buffering=0) as file:
            while file.readinto(piece):
                pass
        with open(target, "wb", buffering=0) as file:
            left = self.output_bytes
            while left > 0:
                left -= file.write(memoryview(piece)[:min(left, len(piece))])
            os.fsync(file.fileno())
        self.note(counts, FLOOR, time.monotonic() - begun, cpu_seconds() - used)
        target.unlink()

    def copy(self, counts):
        os.sync()
        target = self.work / "copy"
        begun, used = time.monotonic(), cpu_seconds()
        subprocess.run(["cp", self.file, target], check=True)
        descriptor = os.open(target, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        self.note(counts, COPY, time.monotonic() - begun, cpu_seconds() - used)
        target.unlink()

    def environment(self):
        cores = str(len(os.sched_getaffinity(0)))
        return os.environ | {"OMP_NUM_THREADS": cores, "HF_HUB_OFFLINE": "1"}

    def find_peers(self):
        """Those that the Python has. Their imports are compiled by this, so that no run pays for it."""
        python, found = self.arguments.peers, []
        for name, script in PEERS.items():
            imports = script.split("print(")[0]
            if python and subprocess.run([python, "-c", imports], capture_output=True, env=self.environment(), check=False).returncode == 0:
                found.append(name)
            else:
                self.left_out.append(f"{name}: " + (f"{python} can't import it" if python else "no --peers PYTHON"))
        return found

    def peer(self, name):
        out = self.work / "out"
        begun = time.time()
        seconds, cpu, peak, said = measured([self.arguments.peers, "-c", PEERS[name], self.source, out], env=self.environment())
        ready = float(next(line.split()[1] for line in said.splitlines() if line.startswith("ready")))
        shutil.rmtree(out)
        self.note(True, name, seconds, cpu, peak, ready - begun)

    def seed(self):
        """Seconds for each of the weights of a smaller drafter, and how many these are."""
        folder = self.arguments.folder / "small"
        if not folder.exists():
            make_drafter(folder, self.arguments.seed_gigabytes)
        script = self.work / "seed.py"
        script.write_text(self.arguments.seed_script.read_text().replace('dev = "cuda"', 'dev = "cpu"'))
        out = self.work / "out"
        seconds, cpu, _, _ = measured([self.arguments.peers, script, folder / "drafter", folder / "calib", out], env=self.environment())
        shutil.rmtree(out)
        weights = (folder / "drafter" / "model.safetensors").stat().st_size // 2
        print(f"{'script':45} {seconds:8.2f} s for {weights / 1e6:.0f} M weights", file=sys.stderr)
        return seconds / weights, cpu / weights, weights


def cpu_seconds():
    """Of this process and of those that it waited for."""
    return sum(os.times()[:4])


def run_all(bench):
    arguments = bench.arguments
    peers = bench.find_peers()
    for line in bench.left_out:
        print(f"LEFT OUT: {line}", file=sys.stderr)
    for run in range(arguments.runs + 1):
        counts = run > 0  # the first warms the page cache
        for what in (NEAREST, DEFAULT):
            for ranks, threads in ((1, 1), (2, 1), (1, 2)):
                bench.quantmill(counts, what, ranks, threads)
        bench.floor(counts)
        bench.copy(counts)
        if counts and run <= arguments.peer_runs:
            for name in peers:
                bench.peer(name)


def collect(bench, where, seed):
    weights = bench.file.stat().st_size // 2
    median = {name: statistics.median(row["seconds"]) for name, row in bench.rows.items()}
    rows = {}
    for name, row in bench.rows.items():
        rows[name] = summary(row["seconds"]) | {
            "source_gb_per_second": round(2e-9 * weights / median[name], 3), "ratio_to_floor": round(median[name] / median[FLOOR], 2),
            "cpu_seconds": round(statistics.median(row["cpu"]), 2), "peak_mb": round(max(row["peak_mb"])) if row["peak_mb"] else None,
            "median_without_imports": round(statistics.median(a - b for a, b in zip(row["seconds"], row["before"])), 3) if row["before"] else None}
    fastest = {what: min(median[f"{what}, {how}"] for how in ("1 rank", "2 ranks", "1 rank of 2 threads")) for what in (NEAREST, DEFAULT)}
    ratios = {f"{what}: least median to floor": round(seconds / median[FLOOR], 2) for what, seconds in fastest.items()}
    ratios |= {f"{what}: 1 rank to 2": round(median[f"{what}, 1 rank"] / median[f"{what}, 2 ranks"], 2) for what in fastest}
    peers = [row["median_without_imports"] for row in rows.values() if row["median_without_imports"]]
    if peers:
        ratios |= {f"fastest peer without imports to {what}": round(min(peers) / seconds, 1) for what, seconds in fastest.items()}
    if seed:
        ratios |= {f"the script to {what}": round(seed[0] * weights / seconds) for what, seconds in fastest.items()}
    return {"machine": where, "source_gb": round(2e-9 * weights, 3), "weights": weights, "output_gb": round(1e-9 * bench.output_bytes, 3),
            "rows": rows, "ratios": ratios, "left_out": bench.left_out,
            "script": {"weights": seed[2], "seconds_for_this_many": round(seed[0] * weights, 1), "cpu_seconds_for_this_many": round(seed[1] * weights, 1)} if seed else None}


def table(found):
    lines = [f"{describe(found['machine'])}. BF16 drafter of {found['source_gb']} GB, output {found['output_gb']} GB, page cache warm.", "",
             "| | median s (runs) | without imports | CPU s | GB/s of source | to the floor | peak MB |", "|---|---|---|---|---|---|---|"]
    for name, row in found["rows"].items():
        lines.append(f"| {name} | {row['median']:.2f} ({row['runs']}: {row['least']:.2f} to {row['most']:.2f}) | "
                     f"{row['median_without_imports'] or ''} | {row['cpu_seconds']} | {row['source_gb_per_second']} | {row['ratio_to_floor']} | {row['peak_mb'] or ''} |")
    if found["script"]:
        script = found["script"]
        seconds = script["seconds_for_this_many"]
        floor = found["rows"][FLOOR]["median"]
        lines.append(f"| the script, from {script['weights'] / 1e6:.0f} M weights | {seconds} (1) | | {script['cpu_seconds_for_this_many']} | {found['source_gb'] / seconds:.4f} | "
                     f"{seconds / floor:.0f} | |")
    return "\n".join([*lines, "", *(f"- {name}: {value}" for name, value in found["ratios"].items()),
                      *(f"- left out: {line}" for line in found["left_out"])]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--memory", default="512M")
    parser.add_argument("--peers", type=Path, metavar="PYTHON")
    parser.add_argument("--peer-runs", type=int, default=3)
    parser.add_argument("--seed-script", type=Path, metavar="FILE")
    parser.add_argument("--seed-gigabytes", type=float, default=.2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.seed_script and not arguments.peers:
        parser.error("--seed-script needs a Python with torch: --peers PYTHON")
    if not (arguments.folder / "drafter").exists():
        make_drafter(arguments.folder, arguments.gigabytes)
    where = machine(arguments.folder)
    work = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        bench = Bench(arguments, work)
        run_all(bench)
        seed = bench.seed() if arguments.seed_script else None
    finally:
        shutil.rmtree(work)
    found = collect(bench, where, seed)
    if arguments.table:
        arguments.table.write_text(table(found))
    if arguments.svg:
        drawn = [(name, row["median_without_imports"] or row["median"]) for name, row in found["rows"].items()]
        drawn += [("the script", found["script"]["seconds_for_this_many"])] if seed else []
        arguments.svg.write_text(bars(f"{found['source_gb']} GB of BF16 to MXFP4, without imports", drawn, "s"))
    write_json(arguments.json, found)


if __name__ == "__main__":
    main()
