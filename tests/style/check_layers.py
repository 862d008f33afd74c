"""Includes follow the modules' dependency order, and third-party headers appear only where they belong.

A module may include what its quantmill_module() line links, and must include something of everything it links; links
go only to modules earlier in ORDER. Sources are read as text: nothing needs to be built.
"""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(os.environ["QUANTMILL_SOURCE_DIR"])
ORDER = ["base", "tensor", "checkpoint", "device", "kernels", "comm", "stats", "quant", "plan", "pipeline", "report", "jobs"]

# Header pattern -> files that may include it. Tests may include any of them.
THIRD_PARTY = {
    r"mpi\.h": r"src/comm/[^/]+\.cpp",
    r"nccl\.h": r"src/comm/nccl(_library)?\.(h|cpp)",
    r"cuda_runtime\.h": r"src/comm/nccl\.cpp|src/device/cuda_\w+\.(h|cpp)",
    r"(hdf5|H5\w+)\.h": r"src/stats/h5_\w+\.(h|cpp)",
    r"zip\.h": r"src/stats/[^/]+\.cpp",
    r"xxhash\.h": r"src/base/hash\.cpp",
    r"pcre2\.h": r"src/base/regular_expression\.cpp",
    r"spdlog/.*": r"src/base/log\.cpp",
    r"nlohmann/.*": r"(src/(checkpoint|plan(/qwix)?|pipeline|report)|jobs)/[^/]+\.cpp",
    r"CLI/.*": r"jobs/[^/]+",
    r"fmt/.*": r"(src|kernels|jobs)/.*\.cpp",
    r".*intrin\.h": r"kernels/cpu/[^/]+|src/device/[^/]+\.cpp",
    r"(gtest|gmock|benchmark)/.*": r"",
}
# C headers of the operating system, and who may use them.
SYSTEM = r"(sys/.*|fcntl|unistd|spawn|fnmatch|malloc|signal|sched|pthread|cpuid|dlfcn)\.h"
SYSTEM_USERS = r"(src/(base|comm|device|pipeline)|jobs)/[^/]+\.cpp|src/base/handle\.h|src/stats/h5_process\.cpp"


def module_of(path):
    """src/stats/gram.cpp -> stats; kernels/cpu/mx.cpp -> kernels; None for tests and the like."""
    if path.startswith("src/"):
        return path.split("/")[1]
    return path.split("/")[0] if path.startswith(("kernels/", "jobs/")) else None


def links():
    """Module -> modules it links, from the CMake files."""
    found = {}
    for cmake in (ROOT / "CMakeLists.txt", ROOT / "src/CMakeLists.txt"):
        text = re.sub(r"#.*", "", cmake.read_text())
        for name, arguments in re.findall(r"^quantmill_module\((\w+)\s+([^)]*)\)", text, re.MULTILINE):
            found[name] = set(re.findall(r"\bquantmill_(\w+)", arguments)) - {"flags"}
    text = (ROOT / "jobs/CMakeLists.txt").read_text()
    found["jobs"] = set(re.findall(r"\bquantmill_(\w+)", text)) - {"flags"}
    return found


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match:
            yield number, match[1] == "<", match[2]


def quoted_problem(source, header, module, allowed):
    if module is None and any((base / header).is_file() for base in ((ROOT / source).parent, ROOT / "tests")):
        return None
    if not any((ROOT / base / header).is_file() for base in ("", "src")):
        return f'"{header}" is not a path from the root or from src'
    target = module_of(header) if header.startswith(("kernels/", "jobs/", "tests/")) else header.split("/")[0]
    if header == "kernels/backends.h" and module not in ("kernels", None):
        return f'"{header}" is private to kernels'
    if module and target != module and target not in allowed[module]:
        return f'"{header}": module {module} does not link {target}'
    return None


def angle_problem(source, header):
    if source.startswith("tests/"):
        return None
    for pattern, users in THIRD_PARTY.items():
        if re.fullmatch(pattern, header):
            return None if re.fullmatch(users, source) else f"<{header}> does not belong here"
    if re.fullmatch(SYSTEM, header):
        return None if re.fullmatch(SYSTEM_USERS, source) else f"<{header}> does not belong here"
    if "/" in header or "." in header:
        return f"<{header}> is not known; if it belongs here, add it to {pathlib.Path(__file__).name}"
    return None


def check_links(allowed):
    for module, linked in allowed.items():
        if module not in ORDER:
            yield f"CMake: module {module} is missing from ORDER"
            continue
        for other in sorted(linked):
            if other not in ORDER or ORDER.index(other) >= ORDER.index(module):
                yield f"CMake: {module} links {other}, which is not earlier in {' '.join(ORDER)}"


def main():
    allowed = links()
    problems = list(check_links(allowed))
    used = {module: set() for module in allowed}
    sources = sorted(p for top in ("src", "kernels", "jobs", "tests") for p in (ROOT / top).rglob("*")
                     if p.suffix in (".h", ".cpp") and "golden" not in p.parts)
    for path in sources:
        source = path.relative_to(ROOT).as_posix()
        module = module_of(source)
        first = True
        for number, angle, header in includes(path):
            problem = angle_problem(source, header) if angle else quoted_problem(source, header, module, allowed)
            if problem:
                problems.append(f"{source}:{number}: {problem}")
            if module and not angle:
                used[module].add("kernels" if header.startswith("kernels/") else header.split("/")[0])
            own = path.with_suffix(".h")
            if first and module and path.suffix == ".cpp" and own.is_file():
                if angle or ROOT / "src" / header != own and ROOT / header != own:
                    problems.append(f"{source}:{number}: its own header must be included first")
            first = False
    for module, linked in allowed.items():
        for other in sorted(linked - used[module]):
            problems.append(f"CMake: {module} links {other} but includes nothing of it")
    print("\n".join(problems) or f"{len(sources)} files keep the order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
