"""What the benchmarks of whole jobs share: runs with their times, the machine in words. Standard library only."""
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("QUANTMILL", ROOT / "build" / "cpu" / "bin" / "quantmill"))


def measured(command, **how):
    """Runs it; (seconds, CPU seconds of all ranks, the largest resident size of a process in MB by GNU time, what it printed)."""
    os.sync()  # what an earlier run left to be written is not this one's
    words = [str(word) for word in command]
    ranks = words.index("--") if words[0] == "mpirun" else 0
    with tempfile.NamedTemporaryFile() as peaks:  # a line of each rank
        timer = ["/usr/bin/time", "-f", "%M %U %S", "-a", "-o", peaks.name]
        words = [word for word in words[:ranks] + timer + words[ranks:] if word != "--"]
        begun = time.monotonic()
        done = subprocess.run(words, capture_output=True, text=True, check=False, **how)
        seconds = time.monotonic() - begun
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        used = [[float(word) for word in line.split()] for line in Path(peaks.name).read_text().splitlines()]
        return seconds, sum(user + system for _, user, system in used), max(peak for peak, *_ in used) / 1024, done.stdout


def launch(ranks):
    """What starts so many ranks; one needs nothing."""
    return ["mpirun", "-np", ranks, "--"] if ranks > 1 else []


def machine(folder):
    """In words, with the file system that `folder` is on."""
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "CPU")
    flags = Path("/proc/cpuinfo").read_text()
    isa = "AVX-512" if "avx512bw" in flags else "AVX2" if "avx2" in flags else "neither AVX2 nor AVX-512"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True).stdout.strip()
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "vectors": isa, "memory_gib": round(memory), "file_system": kind,
            "system": f"{platform.system()} {platform.release()}", "load_at_start": round(os.getloadavg()[0], 1)}


def describe(where):
    return (f"{where['cpu']}, {where['cores']} cores, {where['vectors']}, {where['memory_gib']} GiB, files on {where['file_system']}, "
            f"{where['system']}; load average when it began {where['load_at_start']}")


def make_drafter(folder, gigabytes):
    """A drafter of random weights, folder/drafter, with the statistics folder/calib of two ranks. Returns the drafter."""
    subprocess.run([sys.executable, ROOT / "scripts" / "make_demo_drafter.py", folder, "--gigabytes", str(gigabytes), "--parts", "2"],
                   check=True, stdout=subprocess.DEVNULL)
    return folder / "drafter"


def safetensors_header(shapes):
    """Name -> shape, of BF16 tensors one after the other: what the file begins with, and how many bytes follow."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text, end


def summary(seconds):
    return {"median": round(statistics.median(seconds), 3), "least": round(min(seconds), 3), "most": round(max(seconds), 3), "runs": len(seconds)}


def write_json(path, content):
    if path:
        Path(path).write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))
