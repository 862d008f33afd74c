"""docs/walkthrough.md as it is written: every command, in order, on SmolLM2-135M, and what they print, numbers apart.

The text for statistics is that of tests/quality/tokens.npz. What the document shows of a command's output is what it prints, line by
line, but that digits may be others and that a line "…" stands for any others.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import transformers

from report import Report

SOURCE = pathlib.Path(os.environ["QUANTMILL_INTEROP_SMOLLM2"])
ROOT = pathlib.Path(os.environ["QUANTMILL_SOURCE_DIR"])
WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"]) / "walkthrough"
TOKENS = ROOT / "tests" / "quality" / "tokens.npz"
ANSWER = "Paris"


def blocks(text):
    """(file or None, lines) of each indented block: one after a paragraph that ends in "`NAME`:" is the content of that file."""
    for match in re.finditer(r"(?:^([^\n]*)\n\n)?((?:    [^\n]*\n)(?:(?:    [^\n]*)?\n)*)", text, re.MULTILINE):
        name = re.search(r"`([\w.]+)`:$", match[1] or "")
        yield name and name[1], [line[4:] for line in match[2].rstrip("\n").splitlines()]


def steps(lines):
    """(command, what it prints) in a block of "$ command" lines and output."""
    found = []
    for line in lines:
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return found


def like(line):
    """A line with every number the same, and the spaces before it: a column is as wide as its widest number. So is the phase that
    took longest, which depends on the machine."""
    line = re.sub(r"most on (?:read|decode|search|encode|write|wait)\b", "most on some phase", line)
    return re.sub(r"[ ]+", " ", re.sub(r"\d+(?:[.:]\d+)*", "0", line)).rstrip()


def printed(shown, text):
    """The first line of `shown` that does not come in `text` where it should; None if all do."""
    lines, at, skipped = [like(line) for line in text.splitlines()], 0, True
    for line in shown:
        if line == "…":
            skipped = True
            continue
        wanted = like(line)
        end = len(lines) if skipped else at + 1
        if wanted not in lines[at:end]:
            return line
        at, skipped = lines.index(wanted, at) + 1, False
    return None


def main(report):
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    (WORK / "SmolLM2").symlink_to(SOURCE)
    tokenizer = transformers.AutoTokenizer.from_pretrained(SOURCE)
    (WORK / "text.txt").write_text("\n\n".join(tokenizer.decode(row) for row in np.load(TOKENS)["calibration"]))
    bin_folder = WORK / "bin"
    bin_folder.mkdir()
    (bin_folder / "quantmill").symlink_to(os.environ["QUANTMILL"])
    (WORK / "scripts").symlink_to(ROOT / "scripts")
    environment = os.environ | {"PATH": f"{bin_folder}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "dumb"}
    said = ""
    for name, lines in blocks((ROOT / "docs" / "walkthrough.md").read_text()):
        if name:
            (WORK / name).write_text("\n".join(lines) + "\n")
            continue
        for command, shown in steps(lines):
            done = subprocess.run(["bash", "-c", "set -o pipefail; " + command], cwd=WORK, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            said = done.stdout + done.stderr
            missing = printed(shown, said) if done.returncode == 0 else f"exit {done.returncode}"
            report.check(f"walkthrough: {command}", None if missing is None else f"not printed: {missing}\n{said[-3000:]}")
    report.check("walkthrough: vLLM answers", None if ANSWER in said else said[-500:])


if __name__ == "__main__":
    report = Report()
    report.section("walkthrough", main)
    report.close()
