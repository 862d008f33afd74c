"""What `quantize_dflash_mxfp4.py` does to a decoder layer, on a Llama: scales from an alpha grid by mean |x|, folded into the
norms and up_proj in BF16, blocks by floor, and its own ties. Every method is measured in ratio to it.

    seed_method.py SOURCE STATISTICS OUT    writes what the weights become in BF16, which has all values of MXFP4
"""
import json
import pathlib
import sys

import h5py
import torch
from safetensors.torch import save_file

from llama import bf16, block_exponents, load, round_e2m1, round_mxfp4
from peers import ready


def round_with_seed_ties(values):
    rounded = round_e2m1(values)
    for tie, down in ((0.75, 0.0), (1.75, 1.0), (3.5, 2.0)):
        rounded = torch.where(values.abs() == tie, torch.copysign(torch.tensor(down), values), rounded)
    return rounded


def quantize(values):
    return round_mxfp4(values, block_exponents(values, 0), round_with_seed_ties)


def scales(weights, absmean):
    """The least weighted error of alpha 0, 0.1 … 1, on at most 2048 rows."""
    if len(weights) > 2048:
        weights = weights[::len(weights) // 2048][:2048]
    absmean = absmean.clamp_min(1e-8)
    best = None
    for step in range(11):
        s = (absmean / absmean.mean()).pow(step / 10).clamp(1e-2, 1e2)
        s = s / s.log().mean().exp()
        error = float(((quantize(weights * s) / s - weights) * absmean).square().sum())
        if best is None or error < best[0]:
            best = error, s
    return best[1]


def quantize_model(weights, layers, absmean):
    result = dict(weights)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        part = {name: result[f"{at}{name}.weight"] for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                                                 "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")}
        for norm, readers in (("input_layernorm", [f"self_attn.{x}_proj" for x in "qkv"]),
                              ("post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"])):
            s = scales(torch.cat([part[name] for name in readers]), absmean[at + readers[0]])
            result[f"{at}{norm}.weight"] = bf16(result[f"{at}{norm}.weight"] / s)
            part |= {name: bf16(part[name] * s) for name in readers}
        s = scales(part["mlp.down_proj"], absmean[at + "mlp.down_proj"])
        part["mlp.up_proj"] = bf16(part["mlp.up_proj"] / s.unsqueeze(1))
        part["mlp.down_proj"] = bf16(part["mlp.down_proj"] * s)
        result |= {f"{at}{name}.weight": quantize(value) for name, value in part.items()}
    return result


def read_absmean(statistics):
    with h5py.File(statistics) as file:
        return {"model." + name: torch.from_numpy(group["absmean"][:]).float() for name, group in file["inputs"].items()}


def main(source, statistics, out):
    ready()
    layers = json.loads((source / "config.json").read_text())["num_hidden_layers"]
    out.mkdir()
    save_file({name: value.bfloat16() for name, value in quantize_model(load(source), layers, read_absmean(statistics)).items()}, out / "model.safetensors")


if __name__ == "__main__":
    main(*(pathlib.Path(argument) for argument in sys.argv[1:]))
