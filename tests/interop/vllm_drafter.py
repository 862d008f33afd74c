"""A DFlash2 drafter built, loaded and post-processed by vLLM on a CPU.

Configuration, choice of scheme, names, fused shards, loaders and post-processing are vLLM's. Replaced are, beside what
vllm_kernels.py names, the question whether the drafter has a candidate selector, to which "yes" asks for a runner that
needs Triton.
"""

import json
import tempfile

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.utils import (initialize_model,
                                                    process_weights_after_loading)
from vllm.utils.torch_utils import set_default_torch_dtype

import drafters
import vllm_kernels

POISON = 0x5A  # every byte of every parameter before loading: what no file filled is seen
TARGET_KEYS = ("hidden_size", "intermediate_size", "head_dim", "num_attention_heads",
               "num_key_value_heads", "vocab_size", "rms_norm_eps", "rope_parameters",
               "max_position_embeddings", "hidden_act", "bos_token_id", "eos_token_id")
# vLLM's parameter -> the checkpoint's, stacked by rows.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# Parameters of the class that a drafter need not have: they are the target's, or an option.
NOT_OF_DRAFTER = ("lm_head.weight", "model.embed_tokens.weight", "model.mask_embedding")


vllm_kernels.install()
VllmConfig._is_dflash_candidate_draft = lambda self: False


def unfilled(parameters):
    """Names of those that nothing was loaded into, of name -> tensor."""
    return [name for name, tensor in parameters.items() if bool((tensor.reshape(-1).view(torch.uint8) == POISON).all())]


def write_target(folder, layers, method):
    """A target model's config.json that fits the drafter; the drafter alone is built, so weights are not needed."""
    draft = drafters.config(folder)
    target = drafters.WORK / f"target-{method}"
    target.mkdir(exist_ok=True)
    settings = {key: draft[key] for key in TARGET_KEYS}
    settings |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
                 "num_hidden_layers": layers, "dtype": "bfloat16"}
    (target / "config.json").write_text(json.dumps(settings))
    return target


def start_process_group():
    """Once per process: a world of one, which vLLM's parallel layers ask for."""
    if not torch.distributed.is_initialized():
        rendezvous = tempfile.NamedTemporaryFile(delete=False).name
        init_distributed_environment(1, 0, "file://" + rendezvous, 0, "gloo")
        initialize_model_parallel(1, 1)


def load(folder, dtype):
    """(model, configuration): vLLM's DFlash2 drafter with the folder's weights, as its loaders left them."""
    draft = drafters.config(folder)
    return load_drafter(folder, dtype, draft["num_target_layers"], "dflash", draft["dflash_config"]["block_size"] - 1)


def load_drafter(folder, dtype, target_layers, method, tokens):
    """(model, configuration) of a drafter of any method that proposes so many tokens."""
    settings = EngineArgs(model=str(write_target(folder, target_layers, method)), dtype=dtype, max_model_len=512,
                          enforce_eager=True, skip_tokenizer_init=True,
                          speculative_config={"method": method, "model": str(folder),
                                              "num_speculative_tokens": tokens},
                          ).create_engine_config()
    return build(settings, settings.speculative_config.draft_model_config, dtype), settings


def load_model(folder, dtype):
    """A model of any family, as a drafter is loaded."""
    settings = EngineArgs(model=str(folder), dtype=dtype, max_model_len=128, enforce_eager=True,
                          skip_tokenizer_init=True).create_engine_config()
    return build(settings, settings.model_config, dtype)


def build(settings, configuration, dtype):
    with set_current_vllm_config(settings), set_default_torch_dtype(getattr(torch, dtype)):
        start_process_group()
        model = initialize_model(vllm_config=settings, model_config=configuration)
        for parameter in model.parameters():
            parameter.data.reshape(-1).view(torch.uint8).fill_(POISON)
        get_model_loader(settings.load_config).load_weights(model, configuration)
    return model


def make_ready(model, settings):
    """vLLM's last step before it computes; it may move weights to where only its kernels find them."""
    draft = settings.speculative_config.draft_model_config
    with set_current_vllm_config(settings):
        process_weights_after_loading(model, draft, torch.device("cpu"))


def values(model, source_rows):
    """Parameters by source name, fused ones taken apart and packed ones dequantized by vLLM's kernel.
    source_rows: name -> rows in the source."""
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            module.quant_method.process_weights_after_loading(module)
    found = {}
    for name, parameter in model.named_parameters():
        if name in NOT_OF_DRAFTER or name.endswith(drafters.SCALE):
            continue
        name = name.removeprefix("model.")
        module = name.removesuffix(".weight").split(".")
        shards = [".".join(module[:-1] + [shard, "weight"]) for shard in FUSED.get(module[-1], ())]
        shards = shards or [name]
        rows = [source_rows[shard] for shard in shards]
        for shard, part in zip(shards, parameter.split(rows)):
            found[shard] = part.float().detach()
    return found
