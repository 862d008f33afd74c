"""vLLM's loaders take families' MXFP4 checkpoints: every parameter is filled, and packed ones with all the bytes.

Names, fused shards and which module is quantized are vLLM's own decision here, from config.json and its exclude list;
nothing is computed. Two things are replaced: see vllm_drafter.py, and the question whether experts can be emulated on
this device.
"""

import json
import os
import pathlib

import torch
import transformers
from safetensors.torch import load_file
from vllm.model_executor.layers.fused_moe.experts import ocp_mx_emulation_moe

import folding
import tiny_models
import vllm_drafter
from report import run_cases

WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"]) / "servers"
# The first has experts, so that vLLM makes its groups for all.
CASES = ("mixtral", "llama", "qwen3-moe", "qwen3-next", "qwen3.5-moe", "deepseek-v3", "glm4-moe", "gpt-oss", "gemma3",
         "phi3")
# Keys of released config.json files that transformers does not write, and vLLM reads.
RELEASED = {"deepseek-v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}}
RUN_TIME = ("q_scale", "k_scale", "v_scale", "prob_scale")  # of the key-value cache: in no checkpoint

ocp_mx_emulation_moe.OCP_MXQuantizationEmulationTritonExperts._supports_current_device = staticmethod(lambda: True)


def write(case):
    source = WORK / case
    model = tiny_models.build(case).to(torch.bfloat16)
    model.config.dtype = "bfloat16"
    tiny_models.save(case, model, source)
    path = source / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | RELEASED.get(case, {})))
    _, groups = folding.plan(source)
    return folding.quantize(source, groups)


def check_case(report, case):
    folder = write(case)
    model = vllm_drafter.load_model(folder, "bfloat16")
    parameters = {name: tensor.data for name, tensor in model.named_parameters() if not name.endswith(RUN_TIME)}
    unfilled = vllm_drafter.unfilled(parameters)
    packed = [tensor for tensor in model.parameters() if tensor.dtype == torch.uint8]
    stored = [tensor for tensor in load_file(folder / "model.safetensors").values() if tensor.dtype == torch.uint8]
    found, wanted = (sum(int(tensor.long().sum()) for tensor in tensors) for tensors in (packed, stored))
    wrong = f"nothing fills {unfilled[:3]}" if unfilled else None
    if found != wanted:
        wrong = f"packed parameters' bytes add up to {found}, the file's to {wanted}"
    report.check(f"{case:<20} {type(model).__name__:<35} vLLM fills {len(parameters)} parameters, {len(packed)} packed "
                 f"from {len(stored)} tensors", wrong)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    run_cases(WORK, CASES, check_case)
