"""What the repository as a whole keeps to: no paths of somebody's machine, nothing left to do, files of readable size,
scripts that can be run."""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(os.environ["QUANTMILL_SOURCE_DIR"])
MAX_LINES = 400
TEXT_SUFFIXES = {".h", ".cpp", ".py", ".txt", ".cmake", ".in", ".json", ".md", ".sbatch", ".sh", ""}
MACHINE_PATH = re.compile(r"(?<![\w./~-])/(work|root|home|Users|mnt)/\w")
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")


def text_files():
    skipped = {".git", "build", "golden", "__pycache__"}
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(set(folders) - skipped)
        for name in sorted(set(names) - skipped):  # .git is a file in a worktree
            path = pathlib.Path(folder) / name
            if path.suffix in TEXT_SUFFIXES and not path.is_symlink():
                yield path


def line_problems(path, name):
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            yield f"{name}:{number}: an absolute path of one machine: {line.strip()[:100]}"
        if UNFINISHED.search(line):
            yield f"{name}:{number}: unfinished: {line.strip()[:100]}"
    if name.startswith(("src/", "kernels/", "jobs/")) and path.suffix in (".h", ".cpp") and len(lines) > MAX_LINES:
        yield f"{name}: {len(lines)} lines, more than {MAX_LINES}: split it by purpose"


def executable_problems(path, name):
    runnable = os.access(path, os.X_OK)
    with open(path, "rb") as file:
        shebang = file.read(2) == b"#!"
    # Modules of a script are in a folder of their own.
    if name.startswith(("scripts/", ".ci/")) and name.count("/") == 1 and not (runnable and shebang):
        yield f"{name}: must start with #! and be executable"
    if runnable != shebang:
        yield f"{name}: {'executable without #!' if runnable else 'starts with #! and is not executable'}"


def main():
    problems, count = [], 0
    for path in text_files():
        name = path.relative_to(ROOT).as_posix()
        problems += [*line_problems(path, name), *executable_problems(path, name)]
        count += 1
    print("\n".join(problems) or f"{count} files are in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
