"""scripts/collect --engine vllm: inside vLLM's own workers it records what it does with transformers, of the same tokens.

Only where they are named as arguments, since they take minutes: CASE-stacked, experts in one tensor; ranks-CASE, two processes that
share the model.
"""

import os
import pathlib
import runpy
import subprocess
import sys

import torch
from safetensors.torch import save_file
from vllm.distributed import cleanup_dist_env_and_memory

import tiny_models
from calibration import differences, read_recorded, write_text, write_tokenizer
from folding import quantmill
from report import run_cases

COLLECT = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "collect"
WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"]) / "collect-vllm"
# Of a case: options, and inputs that vLLM alone records, since transformers has no linear there.
CASES = {"llama": (["--gram", "--clip", "1.5"], ()), "qwen3-moe": ([], ("model.layers.0.mlp.gate", "model.layers.2.mlp.gate"))}
RANKS = "ranks-"
FIRST_LAYER = 1e-6  # relative difference of means: both sum in double what float32 kernels differ in by an ulp or so
LATER_LAYERS = 1e-5  # such differences add up from layer to layer


def collect(*arguments):
    """In this process, which has loaded what it needs. Returns why it stopped."""
    sys.path.insert(0, str(COLLECT.parent))
    sys.argv = [str(COLLECT), *map(str, arguments)]
    try:
        runpy.run_path(str(COLLECT), run_name="__main__")
    except SystemExit as end:
        return str(end)
    finally:
        sys.path.pop(0)
        cleanup_dist_env_and_memory()
    return None


def stop_and_resume(command, prefix, ending, save_every, expected):
    """Two workers that can't write, and others that go on from there. None, or what went wrong."""
    blocking = prefix.with_name(prefix.name + ending)
    blocking.mkdir()
    two = [sys.executable, COLLECT, *map(str, command), "-o", prefix, "--engine", "vllm", "--tensor-parallel", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    stopped = subprocess.run([*two, "--save-every", save_every], env=environment, capture_output=True, text=True)
    blocking.rmdir()
    files = [prefix.with_name(f"{prefix.name}.tp{rank}.partial") for rank in range(2)]
    if not all(file.exists() for file in files):
        return f"nothing was kept: {stopped.stderr[-800:]}"
    kept = [torch.load(file, weights_only=True)["tokens"] for file in files]
    done = subprocess.run([*two, "--resume"], env=environment, capture_output=True, text=True)
    if done.returncode:
        return done.stderr[-800:]
    return None if stopped.returncode and kept == expected else f"{kept} tokens were kept"


def check_ranks(report, case):
    """Two workers, which are stopped at their end and go on, record together what one does."""
    command, options = write(case), CASES[case][0]
    wrong = collect(*command, *options, "-o", WORK / "one", "--engine", "vllm")
    wrong = wrong or stop_and_resume([*command, *options], WORK / "two", ".h5" if "--gram" in options else ".tp0.pt", "150", [192, 192])
    report.check(f"collect {case}: two ranks of vLLM, stopped and resumed", wrong)
    if "--gram" not in options:
        for run in ("one", "two"):
            quantmill("stats", "import", WORK / run, "-o", WORK / f"{run}.h5")
    one, other = read_recorded(WORK / "one"), read_recorded(WORK / "two")
    found, wrong = differences(one, other, one.keys())
    wrong = f"{wrong[:3]}, {found}" if one.keys() != other.keys() or wrong or max(found.values()) > LATER_LAYERS else None
    report.check(f"collect {case}: two ranks record what one does, of {len(one)} inputs: {found}", wrong)


def write(case):
    """The case's model, its experts as one tensor where it is called stacked."""
    folder = WORK / case
    model = tiny_models.build(case)
    tiny_models.save(case.removesuffix("-stacked"), model, folder)
    if case.endswith("-stacked"):
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors", {"format": "pt"})
    write_tokenizer(folder, tiny_models.VOCABULARY)
    write_text(folder, [int(t) for t in torch.randint(3, tiny_models.VOCABULARY, (256,), generator=torch.Generator().manual_seed(6))])
    return [folder, folder / "a.txt", folder / "b.jsonl", "--tokens", "256", "--length", "64", "--dtype", "float32"]


def check_case(report, case):
    if case.startswith(RANKS):
        check_ranks(report, case.removeprefix(RANKS))
        return
    options, alone = CASES[case.removesuffix("-stacked")]
    command = [*write(case), *options]
    wrong = collect(*command, "-o", WORK / f"{case}-transformers", "--device", "cpu")
    wrong = wrong or collect(*command, "-o", WORK / f"{case}-vllm", "--engine", "vllm")
    report.check(f"collect {case}: runs in vLLM", wrong)
    one, other = (read_recorded(WORK / f"{case}-{engine}") for engine in ("transformers", "vllm"))
    wrong = sorted(one.keys() ^ other.keys() ^ set(alone))
    report.check(f"collect {case}: vLLM records the {len(one)} inputs that transformers does", f"other inputs: {wrong}" if wrong else None)
    first = {name for name in one if name.startswith("model.layers.0.self_attn.") and "o_proj" not in name}
    for what, names, bound in (("the first layer's norm", first, FIRST_LAYER), ("all else", one.keys() - first, LATER_LAYERS)):
        found, wrong = differences(one, other, sorted(names))
        if wrong or max(found.values()) > bound:
            wrong = f"{wrong[:3]}, {found}"
        told = ", ".join(f"{kind} {value:.1e}" for kind, value in found.items())
        report.check(f"collect {case}: of {what} vLLM records the same: {told}", wrong or None)


if __name__ == "__main__":
    run_cases(WORK, CASES, check_case)
