"""Checkpoints of a tiny model as AutoAWQ, AutoGPTQ and ModelOpt write them, and as those read them.

AutoAWQ 0.2.9 and AutoGPTQ 0.7.1 are for older versions of transformers and import all families' classes first: their modules that
quantize, pack and unpack are imported without that, and nothing of them is replaced. ModelOpt quantizes a model and exports it, on a
CPU; parts of it for other programs are left out. Each reader multiplies in float32: scales are turned to that before.
"""

import copy
import importlib
import importlib.util
import shutil
import sys
import types

import torch
import transformers

import format_models
from format_sources import is_linear, write

GROUP = 128
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm", "modules_to_not_convert": None}
MODELOPT_PRESETS = ("NVFP4_DEFAULT_CFG", "W4A16_NVFP4_CFG", "FP8_DEFAULT_CFG", "FP8_PER_CHANNEL_PER_TOKEN_CFG",
                    "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", "MXFP4_DEFAULT_CFG", "MXFP8_DEFAULT_CFG")
# Of the modules that are imported here, but nothing that needs them is called.
NOT_NEEDED = {"awq": ("awq.utils.calib_data", "awq.quantize.scale"),
              "modelopt": ("vllm", "datasets", "diffusers", "megatron", "peft", "trl", "deepspeed")}


def import_without_package(package, module):
    """A module of a package of which __init__ is not run."""
    if package not in sys.modules:
        found = importlib.util.find_spec(package)
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = list(found.submodule_search_locations)
    return importlib.import_module(module)


class Missing:
    """Within it, modules that are not needed can't be imported, or have nothing in them if they belong to the package itself."""

    def __init__(self, package):
        self.names = NOT_NEEDED[package]
        self.own = package + "."

    def __enter__(self):
        self.before = {name: sys.modules.get(name) for name in self.names}
        for name in self.names:
            sys.modules[name] = EmptyModule(name) if name.startswith(self.own) else None

    def __exit__(self, *_):
        for name, module in self.before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


class EmptyModule(types.ModuleType):
    def __getattr__(self, name):
        return None


def linears(source, dtype):
    """(module, linear of the source's weight) and the other tensors."""
    found, others = [], {}
    for name, tensor in format_models.tensors(source).items():
        if is_linear(name):
            linear = torch.nn.Linear(tensor.shape[1], tensor.shape[0], bias=False, dtype=dtype)
            linear.weight.data = tensor.to(dtype)
            found.append((name.removesuffix(".weight"), linear))
        else:
            others[name] = tensor
    return found, others


def read_modules(folder, is_one, weight_of):
    """Tensors of plain modules, and of the others what `weight_of` makes of theirs."""
    modules = {}
    for name, tensor in format_models.tensors(folder).items():
        module, _, leaf = name.rpartition(".")
        modules.setdefault(module, {})[leaf] = tensor
    return {module + ".weight": (weight_of(parts) if is_one(parts) else parts["weight"]).float() for module, parts in modules.items()}


# --- AutoAWQ

def autoawq(module):
    with Missing("awq"):
        return import_without_package("awq", f"awq.{module}")


def write_with_autoawq(source, folder):
    quantizer = autoawq("quantize.quantizer").AwqQuantizer
    packer = autoawq("modules.linear.gemm").WQLinear_GEMM
    settings = types.SimpleNamespace(group_size=GROUP, zero_point=True, w_bit=4)
    found, stored = linears(source, torch.float16)
    for module, linear in found:
        linear.weight.data, scales, zeros = quantizer.pseudo_quantize_tensor(settings, linear.weight.data)
        packed = packer.from_linear(linear, 4, GROUP, False, scales.t().contiguous(), zeros.t().contiguous())
        stored |= {f"{module}.{leaf}": tensor for leaf, tensor in packed.state_dict().items()}
    write(source, folder, stored, AWQ)


def read_with_autoawq(folder, _):
    dequantize = autoawq("utils.packing_utils").dequantize_gemm
    return read_modules(folder, lambda parts: "qweight" in parts,
                        lambda parts: dequantize(parts["qweight"], parts["qzeros"], parts["scales"].float(), 4, GROUP).t())


# --- AutoGPTQ

def autogptq(module):
    return import_without_package("auto_gptq", f"auto_gptq.{module}")


def gptq_grid(weight, bits, symmetric, groups):
    """AutoGPTQ's scales and zero points of each group of columns [rows, groups], and the weight rounded by them."""
    quantizer = autogptq("quantization.quantizer")
    grid = quantizer.Quantizer()
    grid.configure(bits, perchannel=True, sym=symmetric)
    scales, zeros, rounded = [], [], weight.clone()
    for group in range(int(groups.max()) + 1):
        columns = groups == group
        grid.find_params(weight[:, columns], weight=True)
        rounded[:, columns] = quantizer.quantize(weight[:, columns], grid.scale, grid.zero, grid.maxq)
        scales.append(grid.scale)
        zeros.append(grid.zero)
    return torch.cat(scales, 1), torch.cat(zeros, 1), rounded


@torch.no_grad()
def write_with_autogptq(source, folder, bits, symmetric, reorders):
    packer = autogptq("nn_modules.qlinear.qlinear_cuda").QuantLinear
    generator = torch.Generator().manual_seed(6)
    found, stored = linears(source, torch.float16)
    for module, linear in found:
        rows, columns = linear.weight.shape
        groups = (torch.randperm(columns, generator=generator) if reorders else torch.arange(columns)) // GROUP
        scales, zeros, linear.weight.data = gptq_grid(linear.weight.float(), bits, symmetric, groups)
        linear.half()
        packed = packer(bits, GROUP, columns, rows, False)
        packed.pack(linear, scales, zeros, groups.to(torch.int32))
        stored |= {f"{module}.{leaf}": tensor for leaf, tensor in packed.state_dict().items()}
    write(source, folder, stored, {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": reorders,
                                   "sym": symmetric, "checkpoint_format": "gptq"})


@torch.no_grad()
def gptq_weight(parts, bits):
    """What AutoGPTQ's linear makes of the identity."""
    (rows,), columns = parts["qweight"].shape[1:], parts["g_idx"].numel()
    linear = autogptq("nn_modules.qlinear.qlinear_cuda").QuantLinear(bits, GROUP, columns, rows, False, weight_dtype=torch.float32)
    linear.load_state_dict(parts | {"scales": parts["scales"].float()})
    return linear(torch.eye(columns)).t()


def read_with_autogptq(folder, _):
    bits = format_models.settings(folder)["quantization_config"]["bits"]
    return read_modules(folder, lambda parts: "qweight" in parts, lambda parts: gptq_weight(parts, bits))


# --- ModelOpt

def modelopt(module):
    with Missing("modelopt"):
        return importlib.import_module(f"modelopt.torch.{module}")


def write_with_modelopt(source, folder, preset):
    shutil.rmtree(folder, ignore_errors=True)
    quantization = modelopt("quantization")
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
    tokens = torch.randint(3, format_models.VOCABULARY, (1, 32), generator=torch.Generator().manual_seed(2))
    model = quantization.quantize(model, copy.deepcopy(getattr(quantization, preset)), lambda calibrated: calibrated(tokens))
    modelopt("export").export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=folder)


def modelopt_weight(parts):
    """By ModelOpt's tensor of the format that the stored types are of."""
    codes, scales = parts["weight"], parts["weight_scale"]
    settings = {"scale": scales, "block_sizes": None}
    if "weight_scale_2" in parts:
        kind, width = modelopt("quantization.qtensor.nvfp4_tensor").NVFP4QTensor, 2
        settings |= {"double_scale": parts["weight_scale_2"], "block_sizes": {-1: 16}}
    elif scales.dtype == torch.uint8 and codes.dtype == torch.uint8:
        kind, width = modelopt("quantization.qtensor.mxfp4_tensor").MXFP4QTensor, 2
        settings |= {"block_sizes": {-1: 32}}
    elif scales.dtype == torch.uint8:
        kind, width = modelopt("quantization.qtensor.mxfp8_tensor").MXFP8QTensor, 1
        settings |= {"block_sizes": {-1: 32}}
    else:
        kind, width = modelopt("quantization.qtensor.fp8_tensor").FP8QTensor, 1
        if scales.dim() == 4:  # blocks, which it stores as it divides the weight
            settings |= {"scale": scales[:, 0, :, 0], "block_sizes": {-1: 128, -2: 128}}
        elif scales.dim() == 1:
            settings["scale"] = scales[:, None]
    shape = torch.Size((codes.shape[0], width * codes.shape[1]))
    return kind(shape, torch.float32, codes).dequantize(dtype=torch.float32, **settings)


def read_with_modelopt(folder, _):
    return read_modules(folder, lambda parts: "weight_scale" in parts, modelopt_weight)
