#!/usr/bin/env python3
"""Where a job's CPU time goes, by `perf`: shares of the whole, of what the program does and of its largest functions.

  tests/bench/profile.py FOLDER [--gigabytes 1.1] [--runs 3] [--json FILE] [--table FILE]

Makes a drafter in FOLDER as job.py does. One rank of one thread; the page cache is warm. Samples of all runs count together.
"""
import argparse
import collections
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench_support import PROGRAM, describe, machine, make_drafter, write_json

# The first that fits. Names of functions without their parameters; of the kernel all that is not named here is its own row.
KINDS = (
    ("errors of candidates", r"quantmill.*(add_block_errors|mx_error_curve|ActivationNoise)"),
    ("magnitudes of columns and rows", r"quantmill.*magnitudes"),
    ("codes and scales", r"::quantize_blocks|cpu::mx_quantize"),
    ("what the codes lose", r"quantmill.*(dequantize_blocks|add_row\b|add_errors)"),
    ("decode, fold", r"quantmill.*(decode|scale_rows|encode_all)"),
    ("hash", r"XXH"),
    ("copies out of the page cache", r"\[k\].*(copy_to_iter|filemap_get|filemap_read|folio_mark_accessed)"),
    ("copies into the page cache", r"\[k\].*(copy_folio_from_iter|write_begin|write_end|filemap_add_folio|__filemap)"),
    ("rest of the system", r"\[k\]"),
    ("rest of the program and its libraries", r""))
JOBS = {"round to nearest": lambda folder: ["--scaling", "none"],
        "default": lambda folder: ["--stats", folder / "calib"]}


def samples(command, record):
    """Of one run: how often each function was met, as "MODULE [k] NAME"."""
    subprocess.run(["perf", "record", "-q", "-F", "4000", "-o", record, "--", *command], check=True, capture_output=True)
    told = subprocess.run(["perf", "report", "-i", record, "--no-children", "-g", "none", "--sort", "sym", "-n", "-t", "\t"],
                          check=True, capture_output=True, text=True).stdout
    found = collections.Counter()
    for line in told.splitlines():
        if line.strip() and not line.startswith("#"):
            _, count, name = line.split("\t", 2)
            found[re.sub(r"\(anonymous namespace\)::|\(.*\)$", "", name.strip())] += int(count)
    return found


def profile(folder, what, runs):
    found = collections.Counter()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        command = [str(word) for word in (PROGRAM, "quantize", folder / "drafter", Path(work) / "out", *JOBS[what](folder),
                                          "--threads", 1, "--memory", "512M", "--quiet")]
        for run in range(runs + 1):
            met = samples(command, f"{work}/record")
            found += met if run else collections.Counter()  # the first warms the page cache
            shutil.rmtree(Path(work) / "out")
    total = sum(found.values())
    kinds = collections.Counter()
    for name, count in found.items():
        kinds[next(kind for kind, pattern in KINDS if re.search(pattern, name))] += count
    return {"samples": total, "kinds": {kind: round(100 * kinds[kind] / total, 1) for kind, _ in KINDS},
            "functions": {name: round(100 * count / total, 1) for name, count in found.most_common(12)}}


def table(found):
    names = list(found["jobs"])
    lines = [f"{describe(found['machine'])}. Per cent of a job's CPU time.", "", "| | " + " | ".join(names) + " |", "|---" + "|--:" * len(names) + "|"]
    lines += [f"| {kind} | " + " | ".join(f"{found['jobs'][name]['kinds'][kind]:.1f}" for name in names) + " |" for kind, _ in KINDS]
    for name in names:
        lines += ["", f"Largest functions, {name}:", ""]
        lines += [f"- {share:.1f} `{function}`" for function, share in found["jobs"][name]["functions"].items()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if shutil.which("perf") is None:
        parser.error("it needs `perf` (Debian: linux-perf)")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if not (arguments.folder / "drafter").exists():
        make_drafter(arguments.folder, arguments.gigabytes)
    found = {"machine": machine(arguments.folder), "jobs": {what: profile(arguments.folder, what, arguments.runs) for what in JOBS}}
    if arguments.table:
        arguments.table.write_text(table(found))
    write_json(arguments.json, found)


if __name__ == "__main__":
    main()
