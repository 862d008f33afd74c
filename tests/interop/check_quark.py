"""AMD Quark's own import and transformers' own Quark reader, on a module tree with the checkpoint's names.

Neither library has a DFlash2 class. What they do for one, they do for any tree of torch modules with the checkpoint's
names: turn linears into packed ones as the exclude list says, match names and shapes, unpack and dequantize.
"""

import torch
from quark.torch import import_model_from_safetensors
from torch import nn
from transformers import PreTrainedModel, Qwen3Config

import drafters
from report import Report


def add_modules(root, source):
    """A linear for every matrix called weight, a parameter for anything else: the names are those of the source."""
    for name, tensor in source.items():
        path, leaf = name.split(".")[:-1], name.split(".")[-1]
        is_linear = leaf == "weight" and tensor.dim() == 2
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


class Drafter(PreTrainedModel):
    config_class = Qwen3Config

    def __init__(self, config):
        super().__init__(config)
        add_modules(self, drafters.tensors(drafters.SOURCE))
        self.post_init()

    def _init_weights(self, module):
        """What the checkpoint lacks must not be filled with something plausible."""


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


def read_with_quark(folder):
    model = nn.Module()
    add_modules(model, drafters.tensors(drafters.SOURCE))
    return values(import_model_from_safetensors(model, str(folder)))


def read_with_transformers(folder):
    model, info = Drafter.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True)
    if any(info.values()):
        raise ValueError(", ".join(f"{what}: {sorted(map(str, names))}"
                                   for what, names in info.items() if names))
    return values(model)


if __name__ == "__main__":
    report = Report()
    report.section("packed linears", drafters.check_packed)
    report.section("amd-quark", drafters.check_reader, "amd-quark", read_with_quark)
    report.section("transformers", drafters.check_reader, "transformers", read_with_transformers)
    report.close()
