"""vLLM's own classes of multi-token prediction load the layer that quantmill kept, and the one that it quantized.

As check_servers.py: which module is quantized, names and fused shards are vLLM's decision, from config.json and its
exclude list. Every parameter must be filled, and hold the bits that the checkpoint has for it, whole or in shards.
"""

import json
import os
import pathlib

import torch
import transformers
from safetensors.torch import load_file, save_file
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.fused_moe.experts import ocp_mx_emulation_moe

import folding
import tiny_models
import vllm_drafter
from report import run_cases

WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"]) / "mtp"
ocp_mx_emulation_moe.OCP_MXQuantizationEmulationTritonExperts._supports_current_device = staticmethod(lambda: True)

HIDDEN = tiny_models.DENSE["hidden_size"]
NUMBERED = {"eh_proj.weight": (HIDDEN, 2 * HIDDEN), "enorm.weight": (HIDDEN,), "hnorm.weight": (HIDDEN,),
            "shared_head.norm.weight": (HIDDEN,), "shared_head.head.weight": (tiny_models.VOCABULARY, HIDDEN),
            "embed_tokens.weight": (tiny_models.VOCABULARY, HIDDEN)}
QWEN = {"mtp.fc.weight": (HIDDEN, 2 * HIDDEN), "mtp.norm.weight": (HIDDEN,),
        "mtp.pre_fc_norm_embedding.weight": (HIDDEN,), "mtp.pre_fc_norm_hidden.weight": (HIDDEN,)}
# Case -> (the model's layer that the further one is like, what that is called, what is beside it, keys of config.json).
CASES = {
    "glm4-moe": ("model.layers.2.", "model.layers.3.", NUMBERED, {"num_nextn_predict_layers": 1}),
    "deepseek-v3": ("model.layers.2.", "model.layers.3.", NUMBERED,
                    {"num_nextn_predict_layers": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}),
    "qwen3-next": ("model.layers.1.", "mtp.layers.0.", QWEN, {"num_nextn_predict_layers": 1}),
    "qwen3.5-moe-vl": ("model.language_model.layers.1.", "mtp.layers.0.", QWEN, {"mtp_num_hidden_layers": 1}),
}
# What a job does -> options. Blocks of FP8 are larger than these matrices, so vLLM can't take fused ones.
JOBS = {
    "kept, mxfp4": ("--scheme", "mxfp4"),
    "asked for, mxfp4": ("--scheme", "mxfp4", "--include", "mtp"),
    "kept, fp8": ("--scheme", "fp8-block", "--layout", "fp8"),
}
GLM_JOBS = {
    "kept, compressed-tensors": ("--scheme", "fp8-channel"),
    "asked for, compressed-tensors": ("--scheme", "fp8-channel", "--include", "mtp"),
}
# Parameters of the classes that are the target model's own, and those that are in no checkpoint.
SHARED = ("model.embed_tokens.weight", "lm_head.weight")
RUN_TIME = ("q_scale", "k_scale", "v_scale", "prob_scale", "zero_point")


def write(case):
    """The case's model with one layer more."""
    like, layer, beside, keys = CASES[case]
    source = WORK / case
    model = tiny_models.build(case).to(torch.bfloat16)
    model.config.dtype = "bfloat16"
    model.save_pretrained(source)
    tensors = load_file(source / "model.safetensors")
    generator = torch.Generator().manual_seed(11)
    shapes = {layer + name.removeprefix(like): tensor.shape for name, tensor in tensors.items() if name.startswith(like)}
    if case == "deepseek-v3":  # whose releases have no biases here, and vLLM neither
        shapes = {name: shape for name, shape in shapes.items() if not name.endswith(".bias")}
    shapes |= {name if name.startswith("mtp.") else layer + name: shape for name, shape in beside.items()}
    for name, shape in shapes.items():
        kind = torch.float32 if "correction_bias" in name else torch.bfloat16
        tensors[name] = torch.randn(shape, generator=generator).to(kind)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    path = source / "config.json"
    config = json.loads(path.read_text())
    config.get("text_config", config).update(keys)
    path.write_text(json.dumps(config))
    return source, set(shapes)


def load_predictor(folder):
    settings = EngineArgs(model=str(folder), dtype="bfloat16", max_model_len=128, enforce_eager=True,
                          skip_tokenizer_init=True, speculative_config={"method": "mtp", "num_speculative_tokens": 1},
                          ).create_engine_config()
    return vllm_drafter.build(settings, settings.speculative_config.draft_model_config, "bfloat16")


def sums(tensors):
    """Kind -> sum: the same for shards and what they were fused into. Of codes all bytes; of numbers their values."""
    found = {}
    for tensor in tensors:
        is_code = tensor.dtype in (torch.uint8, torch.float8_e4m3fn)
        kind = str(tensor.dtype).removeprefix("torch.") if is_code else "numbers"
        values = tensor.detach().reshape(-1)
        found[kind] = found.get(kind, 0) + float((values.view(torch.uint8) if is_code else values).double().sum())
    return {kind: round(total, 6) for kind, total in found.items()}


def check_job(report, case, source, names, what, options):
    folder = WORK / f"{case}-{what.replace(', ', '-').replace(' ', '-')}"
    folding.quantmill("quantize", source, folder, "--scaling", "none", *options)
    stored = load_file(folder / "model.safetensors")
    wanted = [tensor for name, tensor in stored.items()
              if any(name.startswith(own.removesuffix("weight")) for own in names) and "embed_tokens" not in name]
    model = load_predictor(folder)
    parameters = {name: tensor.data for name, tensor in model.named_parameters()
                  if name not in SHARED and not name.endswith(RUN_TIME)}
    unfilled = vllm_drafter.unfilled(parameters)
    found, expected = sums(parameters.values()), sums(wanted)
    wrong = f"nothing fills {unfilled[:3]}" if unfilled else None
    if found != expected:
        wrong = f"{wrong or 'all is filled'}; they add up to {found}, the checkpoint's to {expected}"
    report.check(f"{case:<15} {type(model).__name__:<18} {what:<30} {len(parameters)} parameters from {len(wanted)} tensors", wrong)


def check_case(report, case):
    source, names = write(case)
    for what, options in (JOBS | (GLM_JOBS if case == "glm4-moe" else {})).items():
        report.section(f"{case} {what}", check_job, case, source, names, what, options)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    run_cases(WORK, CASES, check_case)
