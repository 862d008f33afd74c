"""SGLang's own classes on every format that quantmill writes: they take its section of config.json, choose a scheme for each
linear, fused ones too, and the parameters that they then make are the tensors of the file, by name, shape and type.

Nothing is computed, and no kernel is shown to exist: SGLang has those for GPUs only. Formats that SGLang 0.5.23 has no scheme for
are in REFUSED, with what it says. The device is said to be one that has all number formats; IPython, which SGLang imports
without need, is left out.
"""

import importlib
import sys
import types

import torch

import format_models
from report import Report

sys.modules.setdefault("IPython", types.ModuleType("IPython"))
sys.modules.setdefault("IPython.display", types.SimpleNamespace(HTML=None, display=None))

CAPABILITY = (9, 5)
CONFIGS = {"quark": ("quark.quark", "QuarkConfig"), "fp8": ("fp8", "Fp8Config"),
           "compressed-tensors": ("compressed_tensors.compressed_tensors", "CompressedTensorsConfig")}
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
NOT_PARAMETERS = {"bias", "weight_shape"}
NO_QUARK, NO_COMPRESSED = "No quark compatible scheme", "No compressed-tensors compatible scheme"
REFUSED = {("mxfp4", "compressed-tensors"): NO_COMPRESSED, ("mxfp8", "compressed-tensors"): NO_COMPRESSED,
           ("mxfp6-e2m3", "quark"): NO_QUARK, ("mxfp6-e3m2", "quark"): NO_QUARK, ("int4-g128", "quark"): NO_QUARK,
           ("int4-g32", "quark"): NO_QUARK, ("int4-asym-g128", "quark"): NO_QUARK,
           ("fp8-block", "quark"): "weight_scale_inv is not in the file"}  # Quark writes weight_scale


def sizes(settings, module):
    """(columns, rows of each linear that is fused into the module) of SGLang's Llama."""
    hidden, inner, head = settings["hidden_size"], settings["intermediate_size"], settings["head_dim"]
    heads, pairs = settings["num_attention_heads"], settings["num_key_value_heads"]
    return {"qkv_proj": (hidden, [heads * head, pairs * head, pairs * head]), "o_proj": (heads * head, [hidden]),
            "gate_up_proj": (hidden, [inner, inner]), "down_proj": (inner, [hidden])}[module]


def make_config(section):
    file, name = CONFIGS[section["quant_method"]]
    module = importlib.import_module(f"sglang.srt.layers.quantization.{file}")
    for loaded in [loaded for name, loaded in sys.modules.items() if name.startswith("sglang.")]:
        if "get_device_capability" in vars(loaded):
            loaded.get_device_capability = lambda *_, **__: CAPABILITY
    torch.cuda.get_device_capability = lambda *_, **__: CAPABILITY
    packed = {fused: list(parts) for fused, parts in FUSED.items()}
    config = getattr(module, name).from_config(section | {"packed_modules_mapping": packed})
    config.packed_modules_mapping = packed
    return config


def make_layer(config, name, columns, rows):
    """(layer with parameters, or None: it stays unquantized; what SGLang chose)"""
    from sglang.srt.layers.linear import ReplicatedLinear
    layer = ReplicatedLinear.__new__(ReplicatedLinear)
    torch.nn.Module.__init__(layer)
    layer.quant_config, layer.prefix = config, name
    method = config.get_quant_method(layer, name)
    if method is None or "Unquantized" in type(method).__name__:
        return None, ""
    method.create_weights(layer, columns, rows, columns, sum(rows), torch.bfloat16, weight_loader=lambda *_, **__: None)
    return layer, type(getattr(layer, "scheme", None) or method).__name__


def fused_shape(shapes, parameter):
    if all(shape in ([], [1]) for shape in shapes):
        return [len(shapes)]  # of scales of whole tensors
    along = getattr(parameter, "output_dim", None) or 0
    whole = list(shapes[0])
    whole[along] = sum(shape[along] for shape in shapes)
    return whole


def check_layer(layer, name, parts):
    """Raises where parameters and the tensors of the linears that are fused into the layer differ."""
    parameters = dict(layer.named_parameters())
    for leaf, parameter in parameters.items():
        stored = [tensors.get(leaf) for tensors in parts]
        if any(tensor is None for tensor in stored):
            raise ValueError(f"{name}: {leaf} is not in the file")
        floats = {torch.float32, torch.bfloat16, torch.float16}
        if any(tensor.dtype != parameter.dtype and not {tensor.dtype, parameter.dtype} <= floats for tensor in stored):
            raise ValueError(f"{name}: {leaf} is {stored[0].dtype}, not {parameter.dtype}")
        shape = fused_shape([list(tensor.shape) for tensor in stored], parameter)
        if leaf not in NOT_PARAMETERS and list(parameter.shape) not in (shape, [*shape, 1]):
            raise ValueError(f"{name}: {leaf} is {shape}, not {list(parameter.shape)}")
    left = {leaf for tensors in parts for leaf in tensors} - parameters.keys() - NOT_PARAMETERS
    if left:
        raise ValueError(f"{name}: nothing reads {sorted(left)}")


def read(folder):
    """{SGLang's scheme: number of linears}. Raises when SGLang refuses, and when its parameters are not the file's tensors."""
    settings, stored = format_models.settings(folder), format_models.tensors(folder)
    config = make_config(settings["quantization_config"])
    chosen = {}
    for layer in range(settings["num_hidden_layers"]):
        for module in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"):
            parent, leaf = f"model.layers.{layer}.{module}".rsplit(".", 1)
            parts = [{name.rsplit(".", 1)[1]: tensor for name, tensor in stored.items() if name.startswith(f"{parent}.{part}.")}
                     for part in FUSED.get(leaf, (leaf,))]
            made, scheme = make_layer(config, f"{parent}.{leaf}", *sizes(settings, leaf))
            if made is not None:
                check_layer(made, f"{parent}.{leaf}", parts)
                chosen[scheme] = chosen.get(scheme, 0) + len(parts)
            elif any(set(tensors) - {"weight", "bias"} or not tensors["weight"].dtype.is_floating_point for tensors in parts):
                raise ValueError(f"{parent}.{leaf}: unquantized for SGLang, but has {sorted(parts[0])}")
    return chosen


def problem(folder):
    try:
        read(folder)
    except Exception as error:  # whatever SGLang throws is its way to refuse
        return f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
    return None


def check_target(report, table, source, scheme, layout):
    folder = format_models.write_target(source, scheme, layout)
    what = f"{scheme} {layout}: SGLang"
    expected = REFUSED.get((scheme, layout))
    if expected:
        found = problem(folder)
        report.check(f"{what} has no such scheme", None if found and expected in found else str(found))
        table.append((scheme, layout, "refused: " + expected))
        report.cell(f"{scheme} {layout}", "SGLang", f"refuses: {expected}")
        return
    chosen = read(folder)
    wanted = sum(name.endswith("_proj.weight") and format_models.is_quantized(format_models.tensors(folder), name.removesuffix(".weight"))
                 for name in format_models.tensors(source))
    report.check(f"{what} makes {wanted} linears quantized, by {', '.join(chosen)}",
                 None if sum(chosen.values()) == wanted else str(chosen))
    faults = [(fault, problem(format_models.write_copy(folder, "broken", *changes)))
              for fault, (*changes, altered) in format_models.FAULTS.items() if not altered]  # it reads no values
    missed = [fault for fault, found in faults if found is None]
    report.check(f"{what} sees {len(faults) - len(missed)} of {len(faults)} faults", ", ".join(missed) or None)
    table.append((scheme, layout, ", ".join(chosen)))
    report.cell(f"{scheme} {layout}", "SGLang", ", ".join(chosen))


def check_targets(report):
    source = format_models.write_model("llama")
    table = [("scheme", "layout", "SGLang's scheme")]
    for scheme, layout in format_models.TARGETS:
        report.section(f"SGLang {scheme} {layout}", check_target, table, source, scheme, layout)
    report.table("Targets in SGLang", table)


if __name__ == "__main__":
    report = Report()
    format_models.start()
    report.section("SGLang", check_targets)
    report.close()
