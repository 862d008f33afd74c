#!/usr/bin/env python3
"""Whole jobs on a GPU beside the same on the CPU, and the one file of scripts/gpu_check, which runs this.

A drafter of random weights goes to MXFP4, by the default search and to the nearest, on one rank and on two that share the GPU.
Rows alternate and medians count; a first round is not counted. Every output must be the same bytes, which is a failure otherwise.
Seconds are of the whole command, starting CUDA included; "phases" are what the job itself says of its parts.
"""
import argparse
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN_RECORD = "quantmill_run.json"
KINDS = {"default": lambda folder: ["--stats", folder / "calib"], "nearest": lambda folder: ["--scaling", "none"]}


def said(*command):
    """What a program printed; empty if it isn't there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def machine(build):
    gpu = said("nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader").splitlines()
    cache = (build / "CMakeCache.txt").read_text()
    nvcc = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(.+)$", cache, re.MULTILINE)
    toolkit = re.search(r"V([\d.]+)", said(nvcc[1], "--version")) if nvcc else None
    architectures = re.search(r"^CMAKE_CUDA_ARCHITECTURES:\w+=(.+)$", cache, re.MULTILINE)
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {"gpus": gpu, "toolkit": toolkit[1] if toolkit else None, "architectures": architectures[1] if architectures else None,
            "cpu": cpu[1] if cpu else None, "cores": len(os.sched_getaffinity(0)), "load_at_start": round(os.getloadavg()[0], 1),
            "commit": said("git", "-C", str(ROOT), "rev-parse", "HEAD")}


def tests(junit):
    """Names by outcome, from ctest's JUnit file."""
    outcomes = {"passed": [], "skipped": [], "failed": []}
    if not junit.exists():
        return outcomes
    for case in xml.etree.ElementTree.parse(junit).getroot().iter("testcase"):
        kind = "failed" if case.find("failure") is not None else "skipped" if case.find("skipped") is not None else "passed"
        outcomes[kind].append({"name": case.get("name"), "seconds": float(case.get("time", 0))})
    return outcomes


def hash_of(folder):
    """Of every file's name and bytes but the record's."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != RUN_RECORD:
            with open(path, "rb") as file:
                whole.update(f"{path.relative_to(folder)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


class JobFailed(Exception):
    """With what was run and what it said."""


class Jobs:
    def __init__(self, program, folder, backend, runs):
        self.program, self.folder, self.backend, self.runs = program, folder, backend, runs
        self.bytes = {}  # kind -> {hash of an output: the first that gave it}

    def run(self, kind, backend, ranks):
        """Seconds, and those of the phases."""
        out = self.folder / "out"
        command = [*(["mpirun", "-np", ranks] if ranks > 1 else []), self.program, "quantize", self.folder / "drafter", out, *KINDS[kind](self.folder),
                   "--backend", backend, "--quiet"]
        os.sync()  # what an earlier run left to be written is not this one's
        begun = time.monotonic()
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=300)
        seconds = time.monotonic() - begun
        if done.returncode:
            raise JobFailed(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        record = json.loads((out / RUN_RECORD).read_text())
        self.bytes.setdefault(kind, {}).setdefault(hash_of(out), f"{backend}, {ranks} ranks")
        shutil.rmtree(out)
        return seconds, {phase["name"]: phase["seconds"] for phase in record["phases"]}, record

    def all(self):
        found = {}
        for run in range(self.runs + 1):
            for kind in KINDS:
                for backend in ("cpu", self.backend):
                    for ranks in (1, 2):
                        seconds, phases, record = self.run(kind, backend, ranks)
                        row = found.setdefault(f"{kind}, {backend}, {ranks} rank{'s' * (ranks > 1)}",
                                               {"backend": record["backend"], "threads_per_rank": record["threads_per_rank"], "runs": [], "phases": []})
                        if run:  # the first warms the page cache
                            row["runs"].append(round(seconds, 3))
                            row["phases"].append(phases)
        for row in found.values():
            row["median_seconds"] = statistics.median(row["runs"])
            row["phases"] = {name: round(statistics.median(run[name] for run in row["phases"]), 3) for name in row["phases"][0]}
        return found


def measure(arguments, program):
    build = Path(tempfile.mkdtemp(prefix="gpu_jobs-", dir=arguments.build))
    try:
        subprocess.run([sys.executable, ROOT / "scripts" / "make_demo_drafter.py", build, "--gigabytes", str(arguments.gigabytes), "--parts", "2"],
                       check=True, stdout=subprocess.DEVNULL)
        size = sum(path.stat().st_size for path in (build / "drafter").glob("*.safetensors"))
        jobs = Jobs(program, build, arguments.backend, arguments.runs)
        return {"source_gb": round(size / 1e9, 3), "rows": jobs.all(), "bytes": jobs.bytes, "failure": None}
    except JobFailed as failure:
        return {"source_gb": None, "rows": {}, "bytes": {}, "failure": str(failure)}
    finally:
        shutil.rmtree(build)


def table(found):
    lines = [", ".join(found["machine"]["gpus"]) or f"backend {found['backend']}",
             " ".join(f"{len(names)} tests {outcome}" for outcome, names in found["tests"].items())]
    width = max(map(len, found["jobs"]["rows"]), default=0)
    for name, row in found["jobs"]["rows"].items():
        lines.append(f"{name:{width}} {row['median_seconds']:8.2f} s")
    return "\n".join(lines + [f"FAILED: {problem}" for problem in found["problems"]])


def problems(found):
    yield from (f"test {test['name']}" for test in found["tests"]["failed"])
    if not found["tests"]["passed"]:
        yield "no test passed"
    if not found["kernels"]:
        yield "no kernel was measured"
    if found["jobs"]["failure"]:
        yield found["jobs"]["failure"]
    for kind, hashes in found["jobs"]["bytes"].items():
        if len(hashes) > 1:
            yield f"{kind}: other bytes of {' and '.join(hashes.values())}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="folder of a build")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--build-seconds", type=int)
    parser.add_argument("--tests", type=Path, required=True, help="ctest's JUnit file")
    parser.add_argument("--kernels", type=Path, required=True, help="gpu_bench's JSON")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    found = {"machine": machine(arguments.build), "backend": arguments.backend, "build_seconds": arguments.build_seconds, "tests": tests(arguments.tests),
             "kernels": json.loads(arguments.kernels.read_text()) if arguments.kernels.exists() else None}
    found["jobs"] = measure(arguments, arguments.build / "bin" / "quantmill")
    found["problems"] = list(problems(found))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
