#!/usr/bin/env python3
"""Ways to read and to write a large file, beside each other: one run, one file, in pieces as large as the job's.

  tests/bench/disk.py FOLDER [--gigabytes 2] [--pieces 4] [--threads 1] [--runs 5] [--json FILE] [--table FILE]

Makes two files in FOLDER, whose file system is what is measured. Methods alternate, so that a machine whose speed drifts does
not favour any. The best run counts, beside the median: what disturbs a run, others on the machine or a hypervisor that has to
give memory back, only ever makes it slower. Each is a process of its own (io_bench, beside the program). Before a cold
read the file's pages are dropped; a hypervisor's or a disk's own cache is out of reach. CPU seconds are those of the process:
what kernel threads write back is not in them. io_uring is measured where liburing-dev was there when this was built. "left in the cache": pages of the file when all is done.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from bench_support import PROGRAM, describe, machine, write_json

IO_BENCH = PROGRAM.parent / "io_bench"
READING = {
    "pread": "pread",
    "pread-ahead": "pread, WILLNEED a piece ahead, 128 KiB at a time (the job)",
    "pread-ahead-at-once": "pread, WILLNEED a piece ahead, all of it at once",
    "pread-behind": "pread, DONTNEED behind (`--page-cache drop`)",
    "pread-uncached": "preadv2 with RWF_DONTCACHE",
    "pread-direct": "pread with O_DIRECT",
    "mmap-copied": "mmap, MADV_SEQUENTIAL, copied into a buffer",
    "mmap": "mmap, MADV_SEQUENTIAL, used in place",
    "mmap-populated": "mmap, MADV_POPULATE_READ by piece, used in place",
    "ring": "io_uring, 4 pieces under way",
    "ring-direct": "io_uring with O_DIRECT, 4 pieces under way"}
WRITING = {
    "pwrite": "pwrite, the file grows",
    "reserved": "pwrite, reserved",
    "begun": "pwrite, reserved, sync_file_range begun (the job)",
    "behind": "the same, the piece before waited for and dropped",
    "uncached": "pwritev2 with RWF_DONTCACHE, reserved",
    "direct": "pwrite with O_DIRECT, reserved"}


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.rows = {}  # (method, piece, "cold" or "warm") -> what io_bench said, of each run
        self.left_out = {}  # method -> why

    def run(self, method, piece, state):
        file = self.arguments.folder / ("disk-read" if method in READING else "disk-written")
        if method in WRITING:
            file.unlink(missing_ok=True)
            os.sync()
        words = [IO_BENCH, method, file, self.arguments.gigabytes, piece, self.arguments.threads, state]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{method}: {done.stderr}")
        found = json.loads(done.stdout)
        if "left_out" in found:
            self.left_out[method] = found["left_out"]
            return
        found["gb_per_second"] = found["bytes"] / found["seconds"] / 1e9
        found["cpu_per_gb"] = found["cpu"] / found["bytes"] * 1e9
        self.rows.setdefault((method, piece, state), []).append(found)
        print(f"{method:16} {piece} MiB {state} {found['gb_per_second']:6.2f} GB/s {found['cpu_per_gb']:6.3f} s/GB", file=sys.stderr)

    def measure(self):
        for turn in range(self.arguments.runs):
            for piece in self.arguments.pieces:
                for method in READING if turn % 2 == 0 else reversed(READING):
                    self.run(method, piece, "cold")
                self.run("pread", piece, "warm")  # brings back what the last left out of the cache
                self.rows[("pread", piece, "warm")].pop()
                for method in READING:
                    if not method.endswith(("direct", "behind")):
                        self.run(method, piece, "warm")
                for method in WRITING if turn % 2 == 0 else reversed(WRITING):
                    self.run(method, piece, "cold")

    def of_runs(self, how, method, piece, state, what):
        runs = self.rows.get((method, piece, state))
        return how([run[what] for run in runs]) if runs else None

    def results(self):
        names = ("gb_per_second", "cpu_per_gb", "cached_mb", "dirty_mb")
        return [{"method": method, "piece_mib": piece, "state": state,
                 **{name: [round(run[name], 3) for run in runs] for name in names if name in runs[0]}}
                for (method, piece, state), runs in self.rows.items()]

    def cells(self, method, first, piece, state):
        """GB/s of the best run and of the median, the best's ratio to the first method's, the least CPU s per GB."""
        best = self.of_runs(max, method, piece, state, "gb_per_second")
        if best is None:
            return ["", "", ""]
        median = self.of_runs(statistics.median, method, piece, state, "gb_per_second")
        ratio = best / self.of_runs(max, first, piece, state, "gb_per_second")
        return [f"{best:.2f} ({median:.2f})", f"{ratio:.2f}", f"{self.of_runs(min, method, piece, state, 'cpu_per_gb'):.2f}"]

    def table(self, piece):
        lines = [f"Pieces of {piece} MiB, {self.arguments.threads} thread{'s' * (self.arguments.threads > 1)}, {self.arguments.gigabytes:g} GB, "
                 f"the best of {self.arguments.runs} runs (and the median).", "",
                 "| reading | cold GB/s | to pread | CPU s/GB | warm GB/s | to pread | CPU s/GB | left in the cache, MB |", "|---|" + "---|" * 7]
        for method, title in READING.items():
            if method not in self.left_out:
                left = f"{self.of_runs(max, method, piece, 'cold', 'cached_mb'):.0f}"
                lines.append("| " + " | ".join([title, *self.cells(method, "pread", piece, "cold"), *self.cells(method, "pread", piece, "warm"), left]) + " |")
        lines += ["", "| writing, and fsync | GB/s | to pwrite | CPU s/GB | most dirty, MB | left in the cache, MB |", "|---|" + "---|" * 5]
        for method, title in WRITING.items():
            if method not in self.left_out:
                rest = [f"{self.of_runs(max, method, piece, 'cold', what):.0f}" for what in ("dirty_mb", "cached_mb")]
                lines.append("| " + " | ".join([title, *self.cells(method, "pwrite", piece, "cold"), *rest]) + " |")
        lines += [f"\nLeft out: {({**READING, **WRITING})[method]}: {why}." for method, why in self.left_out.items()]
        return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--pieces", type=lambda text: [int(word) for word in text.split(",")], default=[4], help="MiB: 2,4,8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    where = machine(arguments.folder)
    bench = Bench(arguments)
    piece = os.urandom(8 << 20)
    with open(arguments.folder / "disk-read", "wb") as file:
        for _ in range(int(arguments.gigabytes * 1e9 / len(piece)) + 1):
            file.write(piece)
        os.fsync(file.fileno())
    try:
        bench.measure()
    finally:
        for name in ("disk-read", "disk-written"):
            (arguments.folder / name).unlink(missing_ok=True)
    write_json(arguments.json, {"machine": where, "threads": arguments.threads, "gigabytes": arguments.gigabytes,
                                "results": bench.results(), "left_out": bench.left_out})
    if arguments.table:
        arguments.table.write_text(describe(where) + ".\n\n" + "\n\n".join(bench.table(piece) for piece in arguments.pieces) + "\n")


if __name__ == "__main__":
    main()
