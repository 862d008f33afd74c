"""What is measured: methods by name, how each is run, and what its result depends on."""
import hashlib
import inspect
import os
import pathlib
from typing import NamedTuple

import peers
from environments import BUILD, ROOT

HERE = pathlib.Path(__file__).resolve().parent
QUANTMILL = os.environ.get("QUANTMILL", str(ROOT / "build" / "cpu" / "bin" / "quantmill"))
MODEL = BUILD / "smollm2"
OUT = BUILD / "out"
TOKENS = HERE / "tokens.npz"
ALL = 128  # sequences of the calibration
SEED, UNQUANTIZED, NEAREST = "seed", "unquantized", "quantmill, round to nearest"


class Method(NamedTuple):
    options: tuple = ()  # of quantmill; of a peer the method
    sequences: int = ALL  # that it gets to see
    program: str = "quantmill"


def recipe(name, *options, sequences=ALL):
    return Method(("--recipe", name, *options), sequences)


def scaled(*options):
    return Method(("--scale-rule", "mse", *options))


GRID = ("--scaling", "awq-grid", "--alphas", "0,0.25,0.5,0.75,1", "--betas", "0,0.25,0.5,0.75,1", "--objective")
W4A16 = ("--objective", "w4a16")
W4A4 = ("--objective", "w4a4")
GPTQ = ("--rounding", "gptq")
TABLE = {  # what docs/quality.md has
    UNQUANTIZED: Method(sequences=0, program=UNQUANTIZED),
    "mxfp4-best": recipe("mxfp4-best"),
    "mxfp4-best, w4a16": recipe("mxfp4-best", *W4A16),
    "mxfp4-best, 32 sequences": recipe("mxfp4-best", sequences=32),
    "mxfp4-default": recipe("mxfp4-default"),
    "mxfp4-default, w4a16": recipe("mxfp4-default", *W4A16),
    "mxfp4-default, 8 sequences": recipe("mxfp4-default", sequences=8),
    "mxfp4-fast": recipe("mxfp4-fast"),
    "mxfp4-fast, w4a4": recipe("mxfp4-fast", *W4A4),
    NEAREST: Method(("--scaling", "none", "--scale-rule", "even"), 0),
    "llm-compressor AWQ": Method(("awq",), 8, "llm-compressor"),
    "llm-compressor GPTQ": Method(("gptq",), 32, "llm-compressor"),
    "llm-compressor RTN": Method(("rtn",), 0, "llm-compressor"),
    "amd-quark GPTQ": Method(("gptq",), 32, "amd-quark"),
    "amd-quark file2file": Method(("file2file",), 0, "amd-quark"),
    "auto-round, 0 iterations": Method(("0",), 8, "auto-round"),
    SEED: Method(program=SEED),
}
TRIALS = {  # more of quantmill's options, for who changes how scales are chosen
    "mse": scaled("--scaling", "none"),
    "awq-grid": scaled("--scaling", "awq-grid", *W4A16),
    "balance": scaled("--scaling", "balance", *W4A4),
    "grid": scaled(*GRID, "w4a16"),
    "grid, w4a4": scaled(*GRID, "w4a4"),
    "gptq": scaled("--scaling", "none", *GPTQ),
    "awq-grid, gptq": scaled("--scaling", "awq-grid", *W4A16, *GPTQ),
    "balance, gptq": scaled("--scaling", "balance", *W4A4, *GPTQ),
}
METHODS = TABLE | TRIALS


def statistics_file(sequences):
    return BUILD / ("calib.h5" if sequences == ALL else f"calib-{sequences}.h5")


def rounds_by_gptq(method):
    return method.program == "quantmill" and ("mxfp4-best" in method.options or "gptq" in method.options)


def command(method, python, peers_python):
    """What writes OUT, but for the unquantized."""
    if method.program == "quantmill":
        statistics = ["--stats", statistics_file(method.sequences)] if method.sequences else []
        return [QUANTMILL, "quantize", MODEL, OUT, "--threads", 1, "--quiet", *statistics, *method.options]
    if method.program == SEED:
        return [python, HERE / "seed_method.py", MODEL, statistics_file(ALL), OUT]
    return [peers_python, HERE / "peers.py", method.program, *method.options, method.sequences, MODEL, TOKENS, OUT]


def key(method):
    """What it is asked for, and what does it: a result with another key is not this method's any more."""
    asked = [str(part) for part in method]
    if method.program == "quantmill":
        does = hashlib.sha256(pathlib.Path(QUANTMILL).read_bytes()).hexdigest()
    elif method.program == SEED:
        does = (HERE / "seed_method.py").read_text()
    elif method.program == UNQUANTIZED:
        does = ""
    else:
        does = " ".join(peers.PACKAGES) + inspect.getsource(peers.PROGRAMS[method.program])
    return hashlib.sha256("\n".join([*asked, does]).encode()).hexdigest()
