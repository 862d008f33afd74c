"""vLLM's engine on a CPU: the weights that its linears multiply by, and tokens with their log-probabilities."""

import contextlib

import torch
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

import vllm_kernels

PROMPT = list(range(3, 35))
NUM_TOKENS = 8
SHARDS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}

vllm_kernels.install()


@contextlib.contextmanager
def engine(folder, **settings):
    """Started on the folder with these settings of the cache, and with vLLM's own check that every parameter found its
    tensor, which is off otherwise."""
    try:
        yield LLM(model=str(folder), dtype="bfloat16", max_model_len=128, max_num_batched_tokens=128, max_num_seqs=2,
                  enforce_eager=True, disable_log_stats=True, skip_tokenizer_init=True, seed=0,
                  distributed_executor_backend="uni", model_loader_extra_config={"enable_weights_track": True}, **settings)
    finally:
        cleanup_dist_env_and_memory()


@torch.no_grad()
def largest_input(module):
    """What a stored scale of activations makes exact: its largest code; 1 where there is none."""
    if hasattr(module, "input_global_scale_inv"):
        return 448 * 6 / module.input_global_scale_inv.item()
    return 448 * module.input_scale.item() if getattr(module, "input_scale", None) is not None else 1.0


@torch.no_grad()
def linear_values(model):
    """Weights by the checkpoint's names, as the outputs of vLLM's linears for unit vectors: no stored form has to be
    known, and rows that no tensor filled are seen. A unit vector is exact in every format of activations. A negative
    one, since oneDNN adds 128 to INT8 activations, and sums of positive ones then overflow on CPUs without VNNI."""
    found = {}
    for name, module in model.named_modules():
        if not hasattr(module, "input_size") or "layers" not in name:
            continue
        unit = -torch.eye(module.input_size, dtype=torch.bfloat16) * largest_input(module)
        weight = -module.quant_method.apply(module, unit).float().t() / largest_input(module)
        base, _, leaf = name.rpartition(".")
        shards = SHARDS.get(leaf, (leaf,))
        rows = getattr(module, "output_sizes", [module.output_size])
        found |= {f"{base}.{shard}.weight": part for shard, part in zip(shards, weight.split(rows))}
    return found


def log_probabilities(llm, prompt=PROMPT, num_tokens=NUM_TOKENS):
    """(tokens: the prompt and those generated greedily, the log-probability of each but the first)"""
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, prompt_logprobs=0, logprobs=0,
                              detokenize=False)
    said = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)[0]
    generated = said.outputs[0]
    tokens = prompt + list(generated.token_ids)
    entries = [*said.prompt_logprobs[1:], *generated.logprobs]
    return tokens, torch.tensor([entry[token].logprob for token, entry in zip(tokens[1:], entries)])


def read(folder, with_tokens=False):
    """(values of the linears, log_probabilities or None)"""
    with engine(folder) as llm:
        return llm.apply_model(linear_values)[0], log_probabilities(llm) if with_tokens else None
