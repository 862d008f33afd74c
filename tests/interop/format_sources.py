"""Quantized checkpoints of a tiny model as other programs write them, for quantmill to read.

Each function writes a folder from a plain one: scales, codes, packing and configuration are the maker's.
"""

import json
import shutil
from types import SimpleNamespace

import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationStrategy, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors
from quark.torch.kernel.mx.triton import downcast_to_mxfp_torch
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Quantize

import format_models
import tiny_models

BLOCK = 128
FP8_LIST = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": ["lm_head"]}
# Preset of llm-compressor -> compressed-tensors' format of it.
PRESETS = {"FP8": "float-quantized", "FP8_DYNAMIC": "float-quantized", "FP8_BLOCK": "float-quantized",
           "W8A8": "int-quantized", "W8A16": "pack-quantized", "W4A16": "pack-quantized",
           "W4A16_ASYM": "pack-quantized", "MXFP4A16": "mxfp4-pack-quantized", "MXFP8A16": "mxfp8-quantized",
           "NVFP4A16": "nvfp4-pack-quantized"}


def is_linear(name):
    return name.endswith("_proj.weight")


def write(source, folder, stored, section):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors",
              {"format": "pt"})
    config = format_models.settings(source) | {"quantization_config": section}
    (folder / "config.json").write_text(json.dumps(config))


def groups(weight, arguments):
    """The weight with the elements that share a scale along the last dimension."""
    rows, columns = weight.shape
    if arguments.strategy == QuantizationStrategy.TENSOR:
        return weight.reshape(1, -1)
    if arguments.strategy == QuantizationStrategy.CHANNEL:
        return weight.reshape(rows, 1, columns)
    if arguments.strategy == QuantizationStrategy.BLOCK:
        blocks = weight.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        return blocks.transpose(1, 2).flatten(2)
    return weight.reshape(rows, -1, arguments.group_size)


def write_with_compressed_tensors(source, folder, preset, dtype):
    """As llm-compressor's preset rounds to nearest; `dtype` is that of the weights and so of most scales."""
    scheme = preset_name_to_scheme(preset, ["Linear"])
    scheme.format = PRESETS[preset]
    compressor = BaseCompressor.get_value_from_registry(PRESETS[preset])
    stored = {}
    for name, tensor in format_models.tensors(source).items():
        if not is_linear(name):
            stored[name] = tensor
            continue
        weight = tensor.to(dtype)
        parts = groups(weight, scheme.weights)
        parameters = {"weight": weight}
        if PRESETS[preset].startswith("nvfp4"):
            parameters["weight_global_scale"] = generate_gparam(weight.amin(), weight.amax())
        scale, zero_point = calculate_qparams(parts.amin(-1), parts.amax(-1), scheme.weights,
                                              parameters.get("weight_global_scale"))
        parameters |= {"weight_scale": scale, "weight_zero_point": zero_point}
        stored |= {f"{name.removesuffix('weight')}{part}": value
                   for part, value in compressor.compress(parameters, scheme).items()}
    config = QuantizationConfig(config_groups={"group_0": scheme}, format=PRESETS[preset], ignore=["lm_head"],
                                quantization_status="compressed")
    write(source, folder, stored, config.model_dump(mode="json"))


def quark_quantizer(scheme):
    return ModelQuantizer(LLMTemplate.get("llama").get_config(scheme=scheme, exclude_layers=["lm_head"]))


def write_with_quark_from_file(source, folder, scheme):
    """Quark's conversion of files, without a model."""
    shutil.rmtree(folder, ignore_errors=True)
    quark_quantizer(scheme).direct_quantize_checkpoint(pretrained_model_path=str(source), save_path=str(folder),
                                                       device="cpu")


@torch.no_grad()
def write_with_quark_from_model(source, folder, scheme):
    """Quark's export of a model that it calibrated."""
    shutil.rmtree(folder, ignore_errors=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
    tokens = torch.randint(3, format_models.VOCABULARY, (1, 32), generator=torch.Generator().manual_seed(2))
    quantizer = quark_quantizer(scheme)
    export_safetensors(quantizer.freeze(quantizer.quantize_model(model, [tokens])), str(folder))


def write_with_transformers(source, folder, scale_format):
    """As transformers saves FP8 blocks: scales F32, or E8M0."""
    settings = SimpleNamespace(weight_block_size=[BLOCK, BLOCK], scale_fmt=scale_format)
    quantize = Fp8Quantize(SimpleNamespace(quantization_config=settings))
    stored = {}
    for name, tensor in format_models.tensors(source).items():
        stored |= quantize.convert({name: tensor}) if is_linear(name) else {name: tensor}
    write(source, folder, stored, FP8_LIST | ({"scale_fmt": scale_format} if scale_format else {}))


def random_codes(weight, generator):
    """Every code there is, which a rounded weight does not have."""
    experts, rows, columns = weight.shape
    return (torch.randint(0, 256, (experts, rows, columns // 2), generator=generator, dtype=torch.uint8),
            torch.randint(110, 126, (experts, rows, columns // 32), generator=generator, dtype=torch.uint8))


def downcast(weight, _):
    """Triton's downcast_to_mxfp, by which transformers and OpenAI make such blocks on GPUs: its reference in torch, as Quark ships it."""
    return downcast_to_mxfp_torch(weight.contiguous(), torch.uint8, axis=-1)[:2]


def write_gpt_oss(folder, encode=random_codes):
    """The layout that transformers reads as gpt-oss; it writes it on GPUs only, so names and section are written here."""
    plain = folder.with_name(folder.name + "-plain")
    tiny_models.save("gpt-oss", tiny_models.build("gpt-oss").to(torch.bfloat16), plain)
    generator = torch.Generator().manual_seed(3)
    stored = {}
    for name, tensor in format_models.tensors(plain).items():
        if tensor.dim() != 3:
            stored[name] = tensor
            continue
        codes, scales = encode(tensor.transpose(1, 2), generator)
        stored[name + "_blocks"] = codes.reshape(*scales.shape, 16)
        stored[name + "_scales"] = scales
    write(plain, folder, stored, {"quant_method": "mxfp4",
                                  "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                             "model.embed_tokens", "lm_head"]})
