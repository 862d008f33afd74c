"""Readers of quantized checkpoints: functions (folder, tensors of the source) -> {name: float32 values}.

Each raises when it refuses the folder, and when what it leaves without a word does not add up: a tensor that no
module took, a module that got none, scales on a module that the list excludes.
"""

import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.utils.match import match_name
from transformers.quantizers.quantizers_utils import should_convert_module

import format_models
import mxfp4
import quark_modules

TOKENS = torch.randint(3, format_models.VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(1))


def by_module(stored):
    modules = {}
    for name, tensor in stored.items():
        module, _, leaf = name.rpartition(".")
        modules.setdefault(module, {})[leaf] = tensor
    return modules


def is_linear(module, parts):
    return "weight_packed" in parts or ("weight" in parts and parts["weight"].dim() == 2 and "embed" not in module)


def decompress(module, parts, config):
    """The module's weight by the compressor of the group that the section puts it in; None if it is in none."""
    groups = config.config_groups.values()
    named = (group for group in groups if any(match_name(module, target) for target in group.targets))
    group = next(named, next(group for group in groups if "Linear" in group.targets))
    is_ignored = any(match_name(module, name) for name in config.ignore)
    if not is_linear(module, parts) or is_ignored:
        if "weight_scale" in parts:
            raise ValueError(f"{module} is ignored, but has scales")
        return None
    compressor = BaseCompressor.get_value_from_registry(group.format)
    if "weight_scale" not in parts:
        raise ValueError(f"{module} lacks its scales")
    return compressor.decompress(parts, group)["weight"]


def read_with_compressed_tensors(folder, _):
    """compressed-tensors' own configuration, matching of names and decompression, module by module."""
    config = QuantizationConfig.model_validate(format_models.settings(folder)["quantization_config"])
    found = {}
    for module, parts in by_module(format_models.tensors(folder)).items():
        weight = decompress(module, parts, config)
        found[module + ".weight"] = (parts["weight"] if weight is None else weight).float()
    return found


def read_with_amd_quark(folder, source):
    return quark_modules.read(folder, source)


def check_list(folder):
    """transformers ignores its lists when it dequantizes: its own matching of names, against the tensors."""
    section = format_models.settings(folder)["quantization_config"]
    stored = format_models.tensors(folder)
    names = [name.removesuffix(".weight") for name, tensor in stored.items()
             if name.endswith(".weight") and tensor.dim() == 2 and "embed" not in name]
    for name in names:
        if should_convert_module(name, section["modules_to_not_convert"]) != format_models.is_quantized(stored, name):
            raise ValueError(f"{name}: the list and the tensors do not agree whether it is quantized")


def check_list_of_experts(folder):
    """The same for MXFP4, of which it holds experts alone."""
    listed = format_models.settings(folder)["quantization_config"]["modules_to_not_convert"]
    names = format_models.tensors(folder).keys()
    for module in {name.rpartition(".")[0] for name in names if ".experts." in name}:
        if should_convert_module(module, listed) != any(name.startswith(module + ".") and name.endswith("_blocks") for name in names):
            raise ValueError(f"{module}: the list and the tensors do not agree whether it is quantized")


LISTS = {"fp8": check_list, "mxfp4": check_list_of_experts}


@torch.no_grad()
def load_with_transformers(folder, dtype, tokens=TOKENS):
    """(model, its logits of the tokens): the class loads the folder, every tensor finds its place and its shape."""
    model, said = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                                                    output_loading_info=True)
    wrong = {what: sorted(map(str, names)) for what, names in said.items() if names}
    if wrong:
        raise ValueError(str(wrong))
    return model.eval(), model(tokens).logits.float()


def dtype_in_transformers(folder):
    """Not BF16, since scales are then rounded to BF16 as they are loaded; but compressed-tensors decompresses MXFP4,
    MXFP8 and NVFP4 to BF16 whatever the model's type."""
    section = format_models.settings(folder).get("quantization_config", {})
    return torch.bfloat16 if section.get("format", "").startswith(("mxfp", "nvfp")) else torch.float32


def values_in_transformers(model):
    """After a forward, which is when compressed-tensors decompresses."""
    packed = quark_modules.values(model)
    return {name: value for name, value in packed.items() if not name.endswith(("_scale", ".scale", "_shape", "_zero_point"))}


def read_with_transformers(folder, _):
    model, _ = load_with_transformers(folder, dtype_in_transformers(folder))
    LISTS.get(format_models.settings(folder)["quantization_config"]["quant_method"], lambda _: None)(folder)
    return values_in_transformers(model)


def stacked(values):
    """Values as transformers' classes hold them: a layer's experts as one tensor."""
    values = dict(values)
    mxfp4.stack(values, False)
    return values


def rounded(values):
    return {name: value.bfloat16().float() for name, value in values.items()}


def problem(reader, folder, source, wanted, rounds=False):
    """None when `reader` takes the folder and has exactly the wanted values, otherwise what is wrong. `rounds`: it
    computes in BF16, so the values are compared in that."""
    try:
        found = reader(folder, source)
    except Exception as error:  # whatever a reader throws is its way to refuse
        return f"refused, {type(error).__name__}: {' '.join(str(error).split())[:90]}"
    if rounds:
        found, wanted = rounded(found), rounded(wanted)
    names = sorted(name for name in found.keys() | wanted.keys() if name not in found or name not in wanted
                   or not torch.equal(found[name], wanted[name]))
    return f"other values in {', '.join(names[:3])}" if names else None
