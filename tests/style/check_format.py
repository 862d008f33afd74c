"""C++ sources are formatted as clang-format 14 does it with the .clang-format of the repository."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(os.environ["QUANTMILL_SOURCE_DIR"])


def main():
    sources = sorted(path.relative_to(ROOT).as_posix() for top in ("src", "kernels", "jobs", "tests")
                     for path in (ROOT / top).rglob("*") if path.suffix in (".h", ".cpp"))
    try:
        found = subprocess.run(["clang-format-14", "--dry-run", "--Werror", *sources], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except FileNotFoundError:
        print("clang-format-14 is not installed (package clang-format-14; scripts/setup test installs it)")
        return 1
    if found.returncode == 0:
        print(f"{len(sources)} files are formatted")
        return 0
    bad = sorted({line.split(":")[0] for line in found.stdout.splitlines() if "[-Wclang-format-violations]" in line})
    print(found.stdout if not bad else "not formatted; run: clang-format-14 -i " + " ".join(bad))
    return 1


if __name__ == "__main__":
    sys.exit(main())
