"""A checkpoint in Quark's MXFP4 layout as one of float32, spelled as the family's class reads it."""

import json
import re
import shutil

import torch
from safetensors.torch import load_file, save_file

BLOCK = 32
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
SCALE = "_scale"
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")


def dequantize(codes, scales):
    """U8 [rows, K/2], the even column in the low half, and U8 [rows, K/32], exponent + 127, as [rows, K]."""
    elements = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1).long()
    values = E2M1[elements & 7] * (1 - 2 * (elements >> 3))
    return values * torch.exp2(scales.float() - 127).repeat_interleave(BLOCK, dim=1)


def stack(tensors, transposed):
    """Experts that are stored one by one, as one tensor each of gate and up, and of down."""
    stacked = {}
    for name in list(tensors):
        if match := EXPERT.fullmatch(name):
            experts = stacked.setdefault(match[1], {}).setdefault(int(match[2]), {})
            experts[match[3]] = tensors.pop(name)
    for base, experts in stacked.items():
        rows = [experts[index] for index in range(len(experts))]
        for name in ("gate_up_proj", "down_proj"):
            matrices = [linears[name] if name in linears else torch.cat([linears["gate_proj"], linears["up_proj"]])
                        for linears in rows]
            tensor = torch.stack(matrices)
            tensors[f"{base}.{name}"] = tensor.transpose(1, 2).contiguous() if transposed else tensor


def write_dequantized(folder, out, is_stacked, transposed):
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name + SCALE in tensors]:
        tensors[name] = dequantize(tensors[name], tensors.pop(name + SCALE))
    if is_stacked:
        stack(tensors, transposed)
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    del config["quantization_config"]
    (out / "config.json").write_text(json.dumps(config))
