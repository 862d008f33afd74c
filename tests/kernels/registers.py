"""Kernels on a GPU keep what they work on in registers: none spills, none has a stack, and two blocks fit a multiprocessor.

  tests/kernels/registers.py FILE VERSION [--write]

FILE is what `ptxas -v` of CUDA VERSION said of kernels/gpu/cuda.cu for sm_90. Every body of kernels/gpu/entries.h must be in
it, and the table of docs/gpu.md must say the same if it was made with the same CUDA; --write makes that table. Without FILE
(a build without CUDA) the test is skipped: exit status 77.
"""
import os
import re
import sys
from pathlib import Path

ROOT = Path(os.environ.get("QUANTMILL_SOURCE_DIR", Path(__file__).resolve().parents[2]))
DOCUMENT = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- registers: tests/kernels/registers.py -->", "<!-- end of registers -->"
SKIPPED = 77
# Of a multiprocessor of sm_80 to sm_120; a block's are given out in steps of 8 a thread.
REGISTERS, THREADS = 65536, {"most": 2048, "block": 256}
MOST_REGISTERS = REGISTERS // (2 * THREADS["block"])


def elements():
    """Names of ElementFormat, in order: e2m1 …"""
    listed = re.search(r"enum class ElementFormat \{([^}]*)\}", (ROOT / "kernels/codec.h").read_text())[1]
    return [name.strip().removeprefix("k").lower() for name in listed.split(",")]


def bodies():
    """Those of AllBodies: "MxCurve e2m1"."""
    listed = re.search(r"AllBodies =\s*BodyList<(.*?)>;", (ROOT / "kernels/gpu/entries.h").read_text(), re.DOTALL)[1]
    found = re.findall(r"(\w+)Body(?:<ElementFormat::k(\w+)>)?", listed)
    return [f"{name} {element.lower()}".strip() for name, element in found]


def kernels(text):
    """Body -> (registers, bytes of stack, bytes of spills) from the words of ptxas."""
    names, found = elements(), {}
    for part in text.split("Compiling entry function ")[1:]:
        body = re.match(r"'\w*run_bodyI\w*?\d+([A-Za-z]\w*?)Body(?:ILNS_13ElementFormatE(\d)EE)?EEEvT_j'", part)
        # The kernel's, and those of functions that it calls.
        sizes = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        used = re.search(r"Used (\d+) registers", part)
        if not (body and sizes and used):
            raise SystemExit(f"not understood, of ptxas:\n{part}")
        stack, stores, loads = (sum(map(int, column)) for column in zip(*sizes))
        found[f"{body[1]} {names[int(body[2])] if body[2] else ''}".strip()] = (int(used[1]), stack, stores + loads)
    return found


def blocks(registers):
    """How many a multiprocessor holds at once."""
    return min(THREADS["most"] // THREADS["block"], REGISTERS // (THREADS["block"] * -(-registers // 8) * 8))


def table(found, version):
    lines = [f"CUDA {version}, sm_90.", "", "| kernel | registers | blocks of 256 threads at once | bytes of stack | bytes spilled |", "|---|---|---|---|---|"]
    for name, (registers, stack, spilled) in found.items():
        lines.append(f"| {name} | {registers} | {blocks(registers)} | {stack} | {spilled} |")
    return "\n".join(lines) + "\n"


def problems(found, wanted):
    for name in sorted(wanted ^ found.keys()):
        yield f"{name}: " + ("in kernels/gpu/entries.h, but ptxas says nothing of it" if name in wanted else "not in kernels/gpu/entries.h")
    for name, (registers, stack, spilled) in found.items():
        if spilled:
            yield f"{name}: spills {spilled} bytes"
        if stack:
            yield f"{name}: {stack} bytes of stack; is an array's index unknown while compiling (QUANTMILL_UNROLL)?"
        if registers > MOST_REGISTERS:
            yield f"{name}: {registers} registers, more than {MOST_REGISTERS}: two blocks of {THREADS['block']} threads don't fit"


def document_problem(made, version, write):
    """What the document's table says otherwise, if that is of the same CUDA."""
    before, rest = DOCUMENT.read_text().split(BEGIN + "\n")
    written, after = rest.split(END)
    if write:
        DOCUMENT.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")
    elif written.split(",")[0] != f"CUDA {version}":
        print(f"NOT COMPARED with docs/gpu.md: its table is of {written.split(',')[0]}, this build has {version}")
    elif written != made + "\n":
        return f"the table of docs/gpu.md differs; this makes it again: {' '.join(sys.argv)} --write"
    return None


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--write"]
    if len(arguments) != 2:
        raise SystemExit(__doc__)
    file, version = Path(arguments[0]), ".".join(arguments[1].split(".")[:2])
    if not version:
        print("SKIPPED: this build has no CUDA, so nothing says what its kernels take of a GPU")
        return SKIPPED
    found, wanted = kernels(file.read_text()), bodies()
    found = {name: found[name] for name in [*wanted, *found] if name in found}  # in the order of the list
    made = table(found, version)
    print(made)
    bad = list(problems(found, set(wanted)))
    bad += [problem for problem in [document_problem(made, version, "--write" in sys.argv)] if problem]
    print("\n".join(bad) or f"{len(found)} kernels: nothing spills, the largest takes {max(found.values())[0]} registers")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
