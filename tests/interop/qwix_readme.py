"""README's way from a Hugging Face FP8 checkpoint to a running Qwix model, as it is written there."""

import os
import pathlib
import re
import subprocess
import sys

import jax.numpy as jnp

import qwix_sources as sources
from coded_weights import FP8_BLOCK
from qwix_qwen35 import Qwen35

ROOT = pathlib.Path(os.environ["QUANTMILL_SOURCE_DIR"])
SECTION = "## From a Hugging Face FP8 checkpoint to a running Qwix model\n"
MY_MODEL = f"""import sys
sys.path += {[str(ROOT / "tests" / "interop"), str(ROOT / "tests" / "support")]}
import jax.numpy as jnp
from qwix_qwen35 import Qwen35
build, tokens = lambda: Qwen35(2, 2, False), jnp.arange(6)[None]
"""


def commands():
    section = (ROOT / "README.md").read_text().split(SECTION)[1]
    return re.match(r"((?:    .*\n)+)", section)[1].replace("\n    ", "\n").strip().splitlines()


def check_readme(report, work, loader):
    """Runs the section's commands in a folder with MODEL_DIR and a my_model.py. The packages are those of this environment,
    so that pip finds them all and downloads nothing."""
    folder = work / "readme"
    source = sources.Qwen35(sources.square_blocks(128), FP8_BLOCK, layers=2, interval=2, fused=False).save(folder)
    source.rename(folder / "MODEL_DIR")
    (folder / "my_model.py").write_text(MY_MODEL)
    pip = pathlib.Path(os.environ["QUANTMILL_INTEROP_PIP"])
    (folder / "bin").mkdir()
    (folder / "bin" / "pip").symlink_to(pip)
    (folder / "bin" / "quantmill").symlink_to(os.environ["QUANTMILL"])
    python = pathlib.Path(sys.prefix) / "bin"
    environment = {**os.environ, "PATH": f"{python}:{folder / 'bin'}:{os.environ['PATH']}", "PIP_PYTHON": str(python / "python"),
                   "PIP_NO_INDEX": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
                   "OMPI_MCA_hwloc_base_binding_policy": "none"}
    lines = commands()
    report.check("README: three commands", None if len(lines) == 3 else f"{lines}")
    for line in lines:
        done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            report.check(f"README: {line}", done.stderr[-1000:])
            return
        report.check(f"README: {line}")
    out = folder / "OUT_DIR"
    tokens = jnp.arange(6)[None]
    wanted = loader(out).load(out, lambda: Qwen35(2, 2, False), tokens)(tokens)
    report.check("README: the last prints what the model computes", None if done.stdout == f"{wanted}\n" else done.stdout[-500:])
