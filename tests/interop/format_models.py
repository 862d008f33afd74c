"""Tiny models in every scheme and layout that quantmill writes: what their files stand for, and broken copies of them.

Values are float32 tensors under the names of the source checkpoint. What a file stands for is computed from the
layouts' definitions by the decoder of tests/job/schemes.py, which shares no code with the program or the readers.
"""

import json
import os
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

import tiny_models
from folding import quantmill

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "job"), str(ROOT / "support"), str(ROOT.parent / "scripts")]
import collecting.recorder  # noqa: E402
from collecting import with_transformers  # noqa: E402
from schemes import decoded, read_target  # noqa: E402

WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"]) / pathlib.Path(sys.argv[0]).stem
VOCABULARY = tiny_models.VOCABULARY

# Rows are multiples of 128 and columns of 256: compressed-tensors 0.17 and transformers 5.17 take the size of FP8
# blocks to be that of the matrix divided by that of its scales, which is wrong where the last block is smaller, and
# compressed-tensors takes scales of one column to be one for each row.
SIZES = dict(vocab_size=VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=64, max_position_embeddings=256, tie_word_embeddings=False,
             pad_token_id=0, bos_token_id=1, eos_token_id=2)
MODELS = {
    "llama": ("LlamaForCausalLM", SIZES),
    "qwen3-moe": ("Qwen3MoeForCausalLM", SIZES | dict(moe_intermediate_size=256, num_experts=4, num_experts_per_tok=2,
                                                      mlp_only_layers=[1])),
}
# Scheme, attention's after a plus, and layout. ":inputs": with scales of activations, of real inputs.
TARGETS = (("mxfp4", "quark"), ("mxfp4", "compressed-tensors"), ("mxfp6-e2m3", "quark"), ("mxfp6-e3m2", "quark"),
           ("mxfp8", "compressed-tensors"), ("nvfp4", "compressed-tensors"), ("nvfp4:inputs", "compressed-tensors"),
           ("fp8-tensor", "compressed-tensors"), ("fp8-tensor:inputs", "compressed-tensors"), ("fp8-tensor", "quark"),
           ("fp8-tensor:inputs", "quark"), ("fp8-channel", "compressed-tensors"), ("fp8-channel", "quark"),
           ("fp8-block", "fp8"), ("fp8-block", "compressed-tensors"), ("fp8-block", "quark"),
           ("int8", "compressed-tensors"), ("w8a16", "compressed-tensors"), ("w8a16-g128", "compressed-tensors"),
           ("int4-g128", "compressed-tensors"), ("int4-g32", "compressed-tensors"), ("int4-g128", "quark"),
           ("int4-g32", "quark"), ("int4-asym-g128", "compressed-tensors"), ("int4-asym-g128", "quark"),
           ("mxfp4+fp8-channel", "quark"), ("int4-g128+fp8-channel", "compressed-tensors"))
# Of schemes that are chosen for so many bits.
CHOSEN = ("mxfp4~5.5", "quark")
# Of a mixture of experts one target for each kind of stored tensor: what else there is differs in its section only.
MOE_TARGETS = (("mxfp4", "quark"), ("mxfp4", "compressed-tensors"), ("nvfp4", "compressed-tensors"), ("fp8-tensor", "quark"),
               ("fp8-channel", "compressed-tensors"), ("fp8-block", "fp8"), ("int8", "compressed-tensors"),
               ("int4-g128", "compressed-tensors"), ("int4-g128", "quark"), ("mxfp4+fp8-channel", "quark"),
               ("int4-g128+fp8-channel", "compressed-tensors"))
SCALES = ("weight_scale_inv", "weight_scale", "scales")  # beside a linear's codes, the last in AutoAWQ's and GPTQ's files
# Linears that stay BF16, among them some that servers fuse, so that the lists of such have to be right.
KEPT = ("*layers.1.self_attn.[qkv]_proj", "*layers.1.mlp.down_proj")


def start():
    """An empty folder for what the script that runs makes."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)


def write_model(name):
    """A BF16 checkpoint of random weights, as transformers saves it."""
    class_name, keys = MODELS[name]
    model = tiny_models.random_model(getattr(transformers, class_name), keys)
    model.to(torch.bfloat16).save_pretrained(WORK / name)
    return WORK / name


@torch.no_grad()
def record_inputs(source, tokens=None):
    """Statistics as scripts/collect records them, keys and values too; over random tokens unless some are given."""
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    recorder = collecting.recorder.Recorder(torch)
    with_transformers.hook_modules(model, recorder, torch)
    if tokens is None:
        tokens = torch.randint(3, VOCABULARY, (4, 128), generator=torch.Generator().manual_seed(3))
    model(tokens, use_cache=True, past_key_values=with_transformers.recording_cache(model, recorder))
    prefix = WORK / (source.name + "-inputs")
    torch.save(recorder.statistics(), f"{prefix}.tp0.pt")
    return prefix


def write_target(source, scheme, layout):
    out = WORK / f"{source.name}.{scheme}.{layout}"
    options = [option for pattern in KEPT for option in ("--keep", pattern)]
    command, (schemes, _, inputs) = "convert", scheme.partition(":")
    schemes, _, bits = schemes.partition("~")
    if bits:
        options += ["--target-bits", bits]
    first, _, attention = schemes.partition("+")
    if attention:
        options += ["--scheme-for", f"*.self_attn.*={attention}"]
    if inputs:
        command = "quantize"
        options += ["--scaling", "none", "--input-scales", "static", "--stats", record_inputs(source)]
    quantmill(command, source, out, "--scheme", first, "--layout", layout, *options)
    return out


def is_made_of(model, scheme, layout):
    """Not with inputs of experts, which transformers holds as one tensor: they are not recorded here."""
    return model == "llama" or (scheme, layout) in MOE_TARGETS


def tensors(folder):
    return load_file(folder / "model.safetensors")


def settings(folder):
    return json.loads((folder / "config.json").read_text())


def is_quantized(stored, module):
    return any(f"{module}.{name}" in stored for name in SCALES)


def expected(folder, source, scheme):
    """(every tensor of the source as the folder stores it, names of those that are quantized)"""
    stored = read_target(folder, "mxfp6-e2m3" if "~" in scheme else scheme)  # the one of six bits that may be chosen
    plain, values, quantized = tensors(folder), {}, set()
    for name in tensors(source):
        if is_quantized(stored, name.removesuffix(".weight")):
            values[name] = torch.from_numpy(decoded(stored, name)).float()
            quantized.add(name)
        else:
            values[name] = plain[name].float()
    return values, quantized


def write_copy(folder, name, change_tensors=None, change_config=None):
    """A copy of `folder` with its tensors and its config.json changed in place."""
    copy = WORK / name
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    stored, config = tensors(folder), settings(folder)
    if change_tensors:
        change_tensors(stored)
    if change_config:
        change_config(config)
    save_file({key: value.contiguous() for key, value in stored.items()}, copy / "model.safetensors", {"format": "pt"})
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def write_plain(source, values, name):
    """The source's model with these values in float32."""
    return write_copy(source, name, lambda stored: stored.update(values))


# --- Faults that a writer could have. Each is one change to a good checkpoint that a reader must not accept as good.

ATTENTION = "model.layers.0.self_attn."
OTHER_VALUE = ATTENTION + "v_proj"
NOT_SQUARE = "model.layers.1.mlp.gate_proj"  # however its codes are packed
LISTS = ("exclude", "ignore", "modules_to_not_convert")


def part(stored, module, kind):
    """The name of the module's tensor of codes or of scales."""
    names = {"codes": ("weight_packed", "weight"), "scales": SCALES}[kind]
    return next(f"{module}.{name}" for name in names if f"{module}.{name}" in stored)


def without_scale(stored):
    del stored[part(stored, ATTENTION + "k_proj", "scales")]


def transposed_shape(stored):
    name = part(stored, NOT_SQUARE, "codes")
    stored[name] = stored[name].reshape(stored[name].shape[::-1])


def halved_scales(stored):
    scales = stored[part(stored, OTHER_VALUE, "scales")]
    scales.copy_(scales - 1 if scales.dtype == torch.uint8 else (scales.float() / 2).to(scales.dtype))


def change_list(config, change):
    section = config["quantization_config"]
    for key in set(LISTS) & section.keys():
        section[key] = change(section[key])


def kept_not_excluded(config):
    change_list(config, lambda names: [name for name in names if "lm_head" not in name and "down_proj" not in name])


def quantized_excluded(config):
    change_list(config, lambda names: [*names, ATTENTION + "o_proj"])


# name -> (change to the tensors, change to the config, the module that alone has other values if a reader loads it)
FAULTS = {
    "missing scale": (without_scale, None, None),
    "wrong shape": (transposed_shape, None, None),
    "unquantized linear not in the list": (None, kept_not_excluded, None),
    "quantized linear in the list": (None, quantized_excluded, None),
    "one module's scales halved": (halved_scales, None, OTHER_VALUE),
}


def check_faults(report, what, folder, problem):
    """`problem`: what a reader finds wrong with a folder, or None."""
    missed = []
    for fault, (change_tensors, change_config, altered) in FAULTS.items():
        found = problem(write_copy(folder, f"{folder.name}.broken", change_tensors, change_config))
        if found is None or (altered and found != f"other values in {altered}.weight"):
            missed.append(f"{fault} ({found or 'taken for the good one'})")
    report.check(f"{what}: sees {len(FAULTS) - len(missed)} of {len(FAULTS)} faults", ", ".join(missed) or None)
