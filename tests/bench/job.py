#!/usr/bin/env python3
"""The whole job beside the floor that the disk sets: reading the source's bytes, writing the output's bytes, fsync.

  tests/bench/job.py FOLDER [--runs 3] [--ranks 2] [--memory 512M]

FOLDER is what scripts/make_demo_drafter.py made (drafter, calib.tp*.pt). Runs alternate, so that a machine whose speed drifts
does not favour either; medians and ratios are what counts. Prints one JSON object. The page cache is as it comes: warm, if
the source fits in memory.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def floor(source, output_bytes, folder):
    """Seconds of reading the source and of writing and syncing so many bytes, one after the other, in 8 MiB pieces."""
    begun = time.monotonic()
    piece = bytearray(8 << 20)
    with open(source, "rb", buffering=0) as file:
        while file.readinto(piece):
            pass
    with open(folder / "floor", "wb", buffering=0) as file:
        left = output_bytes
        while left > 0:
            left -= file.write(memoryview(piece)[:min(left, len(piece))])
        os.fsync(file.fileno())
    seconds = time.monotonic() - begun
    (folder / "floor").unlink()
    return seconds


def job(program, folder, out, ranks, memory, options):
    """Seconds of one job, and the largest resident size of a rank in MB (by GNU time)."""
    command = ["mpirun", "-np", str(ranks), "/usr/bin/time", "-f", "peak %M", program, "quantize", folder / "drafter", out,
               "--threads", "1", "--memory", memory, "--overwrite", "--quiet", *options]
    begun = time.monotonic()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    return time.monotonic() - begun, max(int(kb) for kb in re.findall(r"^peak (\d+)$", done.stderr, re.M)) / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--memory", default="512M")
    arguments = parser.parse_args()
    program = os.environ.get("QUANTMILL", ROOT / "build" / "cpu" / "bin" / "quantmill")
    source = arguments.folder / "drafter" / "model.safetensors"
    kinds = {"default": ["--stats", arguments.folder / "calib"], "no journal": ["--stats", arguments.folder / "calib", "--no-journal"],
             "round to nearest": ["--scaling", "none"]}
    seconds, peaks = {"floor": [], **{kind: [] for kind in kinds}}, []
    work = Path(tempfile.mkdtemp(dir=arguments.folder))
    out = work / "out"
    try:
        for run in range(arguments.runs + 1):
            for kind, options in kinds.items():
                took, peak = job(program, arguments.folder, out, arguments.ranks, arguments.memory, options)
                if run:  # the first warms the page cache
                    seconds[kind].append(took)
                    peaks.append(peak)
            took = floor(source, (out / "model.safetensors").stat().st_size, work)
            if run:
                seconds["floor"].append(took)
    finally:
        shutil.rmtree(work)
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    size = source.stat().st_size
    print(json.dumps({
        "source_gb": round(size / 1e9, 3), "ranks": arguments.ranks, "memory": arguments.memory,
        "median_seconds": {kind: round(value, 2) for kind, value in median.items()},
        "source_gb_per_second": {kind: round(size / 1e9 / value, 3) for kind, value in median.items()},
        "ratio_to_floor": {kind: round(value / median["floor"], 2) for kind, value in median.items()},
        "journal_share": round(median["default"] / median["no journal"] - 1, 3),
        "peak_rank_mb": round(max(peaks), 1), "all_seconds": {k: [round(x, 2) for x in v] for k, v in seconds.items()}}, indent=1))


if __name__ == "__main__":
    main()
