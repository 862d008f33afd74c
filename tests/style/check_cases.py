"""Every row of tests/cases/README.md names a test that exists, and every test in tests/cases is in a row."""

import os
import pathlib
import re
import sys

TESTS = pathlib.Path(os.environ["QUANTMILL_SOURCE_DIR"]) / "tests"
ROW = re.compile(r"^\|.*\| `([^`]+)` \|$")


def exists(test):
    """Whether `folder/file Suite.name` is there; without a suite the file alone."""
    path, _, name = test.partition(" ")
    if not (TESTS / path).is_file():
        return False
    if not name:
        return True
    text = (TESTS / path).read_text(encoding="utf-8")
    suite, _, case = name.partition(".")
    if path.endswith(".py"):
        body = re.split(rf"^class {re.escape(suite)}\b.*$", text, maxsplit=1, flags=re.MULTILINE)
        return len(body) == 2 and bool(re.search(rf"^    def {re.escape(case)}\(self", re.split(r"^class ", body[1], maxsplit=1, flags=re.MULTILINE)[0],
                                                 flags=re.MULTILINE))
    return bool(re.search(rf"^TEST\w*\({re.escape(suite)}, {re.escape(case)}\)", text, flags=re.MULTILINE))


def own_tests():
    """Of the scripts beside the table, in its spelling."""
    for path in sorted((TESTS / "cases").glob("*.py")):
        suite = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"class (\w+)", line):
                suite = found.group(1)
            elif found := re.match(r"    def (test_\w+)\(self", line):
                yield f"cases/{path.name} {suite}.{found.group(1)}"


def main():
    rows = [line for line in (TESTS / "cases" / "README.md").read_text(encoding="utf-8").splitlines()
            if line.startswith("|") and not line.startswith(("| case |", "|---"))]
    problems, named = [], set()
    for row in rows:
        found = ROW.match(row)
        if not found:
            problems.append(f"no test in the last column: {row[:100]}")
        elif not exists(found.group(1)):
            problems.append(f"there is no test {found.group(1)}")
        else:
            named.add(found.group(1))
    problems += [f"in no row: {test}" for test in own_tests() if test not in named]
    print("\n".join(f"tests/cases/README.md: {problem}" for problem in problems) or f"{len(rows)} cases have their tests")
    return 1 if problems or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
