"""A tree of torch modules with a checkpoint's names, which amd-quark turns into packed ones and fills.

amd-quark treats such a tree as it treats a model's class: it takes linears as packed or not as the exclude list says,
matches names and shapes, unpacks and dequantizes.
"""

import torch
from quark.torch import import_model_from_safetensors
from torch import nn


def add_modules(root, source):
    """A linear for every matrix called weight but the embedding, a parameter for anything else, under the source's
    names."""
    for name, tensor in source.items():
        path, leaf = name.split(".")[:-1], name.split(".")[-1]
        is_linear = leaf == "weight" and tensor.dim() == 2 and path[-1] != "embed_tokens"
        module = root
        for part in path[:-1] if is_linear else path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        if is_linear:
            rows, columns = tensor.shape
            module.add_module(path[-1], nn.Linear(columns, rows, bias=False, dtype=tensor.dtype))
        else:
            module.register_parameter(leaf, nn.Parameter(torch.zeros_like(tensor)))


def values(model):
    """Parameters by source name; packed ones as Quark's modules unpack and dequantize them."""
    found, packed = {}, set()
    for name, module in model.named_modules():
        if hasattr(module, "_get_qweight"):
            found[name + ".weight"] = module._get_qweight(module.weight).float()
            packed.add(name + ".")
    for name, parameter in model.named_parameters():
        if not name.startswith(tuple(packed)):
            found[name] = parameter.float()
    return {name: value.detach() for name, value in found.items()}


def load(folder, source):
    """`source`: the tensors that the tree is built from."""
    model = nn.Module()
    add_modules(model, source)
    return import_model_from_safetensors(model, str(folder))


def read(folder, source):
    return values(load(folder, source))


def output_scales(folder, source):
    """By module: what Quark's modules multiply their outputs' codes by, which are what the key-value cache holds."""
    return {name: module.output_quantizer.scale.item() for name, module in load(folder, source).named_modules()
            if getattr(module, "output_quantizer", None) is not None}
