"""Importance matrices of released models, with the names that llama.cpp's own map gives their weights: every input is found."""
import json
import os
import pathlib
import sys

import gguf
import numpy as np

from imatrices import import_imatrix, write_imatrix
from report import Report

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests" / "support"))
from family_headers import save_sparse, shapes_of  # noqa: E402

WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"])
FAMILIES = ROOT / "tests" / "golden" / "families"
# Not here: models that llama.cpp does not know (EAGLE-3 heads), or whose part names its map does not have (tiny Gemma 4, GLM-5).
ARCHITECTURES = {
    "command-r-plus": "COMMAND_R", "deepseek-v2-lite": "DEEPSEEK2", "gemma-2-9b": "GEMMA2", "gemma-3-4b": "GEMMA3",
    "glm-4-32b": "GLM4", "glm-4.5-air": "GLM4_MOE", "gpt-oss-20b-bf16": "GPT_OSS", "llama-3.1-8b": "LLAMA",
    "llama-4-scout": "LLAMA4", "mixtral-8x7b": "LLAMA", "olmo-2-32b": "OLMO2", "phi-4": "PHI3", "qwen2-57b-a14b": "QWEN2MOE",
    "qwen2.5-7b": "QWEN2", "qwen3-30b-a3b": "QWEN3MOE"}


def squares_of_family(family, names):
    """What an imatrix of the model holds, by llama.cpp's names: of every matrix, other values for each."""
    experts, shapes = {}, {}
    for name, shape in shapes_of(family).items():
        if len(shape) < 2 or "visual" in name or "vision" in name or "embed_tokens" in name or "norm" in name:
            continue
        module = name.removesuffix(".weight")
        parts = module.split(".")
        if "experts" in parts[:-1] and parts[parts.index("experts") + 1].isdigit():
            module = ".".join(part for i, part in enumerate(parts) if not (part.isdigit() and parts[i - 1] == "experts"))
            experts[module] = experts.get(module, 0) + 1
        elif len(shape) == 3:
            experts[module] = shape[0]
        mapped = names.get_name(module.replace("language_model.", ""))
        if mapped:
            columns = shape[-1] if len(shape) == 2 else shape[1]  # gpt-oss and Llama 4 store [experts, in, out]
            shapes[mapped + ".weight"] = (module, columns)
    return {name: (np.full((experts.get(module, 1), columns), 8.0), [8] * experts.get(module, 1)) for name, (module, columns) in shapes.items()}


def check_names(report, family):
    source = FAMILIES / f"{family}.json"
    config = json.loads(source.read_text())["config"]
    layers = config.get("num_hidden_layers") or config["text_config"]["num_hidden_layers"]
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, ARCHITECTURES[family]), layers)
    folder = WORK / f"imatrix-{family}"
    if not folder.exists():
        save_sparse(folder, source)
    sums = squares_of_family(source, names)
    out, done = import_imatrix(write_imatrix(WORK / f"{family}.gguf", sums), folder)
    wrong = None
    if done.returncode != 0:
        wrong = done.stderr[-300:]
    elif "not in it" in done.stdout or "not used" in done.stdout:
        wrong = done.stdout
    report.check(f"imatrix {family}: every input of {len(sums)} weights is found", wrong)
    out.with_suffix(".gguf").unlink()


report = Report()
for family in ARCHITECTURES:
    report.section(f"imatrix {family}", check_names, family)
report.close()
