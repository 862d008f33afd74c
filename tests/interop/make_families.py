#!/usr/bin/env python3
"""Writes tests/golden/families: what headers and config.json of released models hold, for tests of architectures.

    make_families.py             in the environment that tests/interop/run installs; needs no weights and no network

Names and shapes come from the classes that define the models, built without memory at the size of a release; tensors
that releases have beyond the class (multi-token prediction) are added. A config.json has the keys as the release
writes them, those that say nothing about tensors left out. `folds` is counted by hand: how many vectors of the model
can take a scale.
"""

import json
import pathlib
import re

import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion

import tiny_models

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "golden" / "families"

DEEPSEEK = dict(model_type="deepseek_v3", hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048,
                num_hidden_layers=61, num_attention_heads=128, num_key_value_heads=128, q_lora_rank=1536,
                kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=256,
                n_shared_experts=1, first_k_dense_replace=3, moe_layer_freq=1, num_nextn_predict_layers=1,
                vocab_size=129280, tie_word_embeddings=False)


def mtp(layer, hidden, vocabulary):
    """Of a multi-token prediction layer, what it has beyond a block."""
    return {f"model.layers.{layer}.{name}": shape for name, shape in {
        "embed_tokens.weight": [vocabulary, hidden], "enorm.weight": [hidden], "hnorm.weight": [hidden],
        "eh_proj.weight": [hidden, 2 * hidden], "shared_head.norm.weight": [hidden],
        "shared_head.head.weight": [vocabulary, hidden]}.items()}


# Releases with multi-token prediction of this kind: a layer of full attention, here copied from this one of the model.
# Qwen3.5 stores its experts as one tensor.
QWEN_MTP = {"qwen3-next-80b": 3, "tiny-qwen3.5": 1, "tiny-qwen3.5-moe-vl": 1}


def qwen_mtp(found, layer, is_stacked):
    """The multi-token prediction of a Qwen, from the model's tensors."""
    (vocabulary, hidden), = (shape for name, shape in found.items() if name.endswith("embed_tokens.weight"))
    added = {"mtp.fc.weight": [hidden, 2 * hidden], "mtp.norm.weight": [hidden], "mtp.pre_fc_norm_hidden.weight": [hidden],
             "mtp.pre_fc_norm_embedding.weight": [hidden]}
    for name, shape in found.items():
        inside = re.match(rf"model\.(?:language_model\.)?layers\.{layer}\.(.*)", name)
        if inside and not (is_stacked and ".experts." in name):
            added["mtp.layers.0." + inside.group(1)] = shape
    if is_stacked:
        shapes = {name.rsplit(".experts.", 1)[1]: shape for name, shape in found.items() if ".experts." in name}
        experts = len({name.split(".")[0] for name in shapes})
        rows, cols = shapes["0.up_proj.weight"]
        added |= {"mtp.layers.0.mlp.experts.gate_up_proj": [experts, 2 * rows, cols],
                  "mtp.layers.0.mlp.experts.down_proj": [experts, cols, rows]}
    return added


def dense(layers):
    return 4 * layers  # q, k, v; gate, up; down; o


# Name -> (architecture, class, config.json, number of folds). For MTP the class is built with a layer more: its block.
RELEASES = {
    "llama-3.1-8b": ("llama", "LlamaForCausalLM", dict(
        model_type="llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=False), dense(32)),
    "llama-3.2-1b": ("llama", "LlamaForCausalLM", dict(
        model_type="llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, vocab_size=128256, tie_word_embeddings=True), dense(16)),
    "mistral-small-3.1": ("llama", "Mistral3ForConditionalGeneration", dict(
        model_type="mistral3", text_config=dict(
            model_type="mistral", hidden_size=5120, intermediate_size=32768, num_hidden_layers=40, head_dim=128,
            num_attention_heads=32, num_key_value_heads=8, vocab_size=131072),
        vision_config=dict(model_type="pixtral", hidden_size=1024, intermediate_size=4096, num_hidden_layers=2,
                           num_attention_heads=16, head_dim=64, image_size=1540, patch_size=14)), dense(40)),
    "mixtral-8x7b": ("mixtral", "MixtralForCausalLM", dict(
        model_type="mixtral", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2, vocab_size=32000,
        tie_word_embeddings=False), 32 * (3 + 8)),
    "qwen2.5-7b": ("qwen2", "Qwen2ForCausalLM", dict(
        model_type="qwen2", hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, vocab_size=152064, tie_word_embeddings=False), dense(28)),
    "qwen2-57b-a14b": ("qwen2-moe", "Qwen2MoeForCausalLM", dict(
        model_type="qwen2_moe", hidden_size=3584, intermediate_size=18944, moe_intermediate_size=2560,
        shared_expert_intermediate_size=20480, num_experts=64, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, decoder_sparse_step=1, vocab_size=151936, tie_word_embeddings=False),
        28 * (3 + 1 + 64)),
    "qwen3-30b-a3b": ("qwen3-moe", "Qwen3MoeForCausalLM", dict(
        model_type="qwen3_moe", hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_experts=128,
        num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, head_dim=128, decoder_sparse_step=1,
        mlp_only_layers=[], vocab_size=151936, tie_word_embeddings=False), 48 * (3 + 128)),
    "qwen3-next-80b": ("qwen3-next", "Qwen3NextForCausalLM", dict(
        model_type="qwen3_next", hidden_size=2048, intermediate_size=5120, moe_intermediate_size=512,
        shared_expert_intermediate_size=512, num_experts=512, num_hidden_layers=48, num_attention_heads=16,
        num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4, full_attention_interval=4,
        decoder_sparse_step=1, mlp_only_layers=[], vocab_size=151936, tie_word_embeddings=False), 48 * (3 + 1 + 512)),
    "deepseek-v2-lite": ("deepseek", "DeepseekV2ForCausalLM", dict(
        model_type="deepseek_v2", hidden_size=2048, intermediate_size=10944, moe_intermediate_size=1408,
        num_hidden_layers=27, num_attention_heads=16, num_key_value_heads=16, q_lora_rank=None, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, n_shared_experts=2,
        first_k_dense_replace=1, moe_layer_freq=1, vocab_size=102400, tie_word_embeddings=False),
        27 * 4 + 1 + 26 * (1 + 64)),
    "deepseek-v3": ("deepseek", "DeepseekV3ForCausalLM", DEEPSEEK, 61 * 5 + 3 + 58 * (1 + 256)),
    "deepseek-v3.2": ("deepseek-v3.2", "DeepseekV32ForCausalLM", DEEPSEEK | dict(
        model_type="deepseek_v32", index_n_heads=64, index_head_dim=128, index_topk=2048),
        61 * 5 + 3 + 58 * (1 + 256)),
    "kimi-k2": ("deepseek", "DeepseekV3ForCausalLM", DEEPSEEK | dict(
        model_type="kimi_k2", num_attention_heads=64, num_key_value_heads=64, n_routed_experts=384,
        first_k_dense_replace=1, num_nextn_predict_layers=0, vocab_size=163840), 61 * 5 + 1 + 60 * (1 + 384)),
    "gemma-2-9b": ("gemma2", "Gemma2ForCausalLM", dict(
        model_type="gemma2", hidden_size=3584, intermediate_size=14336, num_hidden_layers=42, num_attention_heads=16,
        num_key_value_heads=8, head_dim=256, vocab_size=256000), dense(42)),
    "gemma-3-4b": ("gemma3", "Gemma3ForConditionalGeneration", dict(
        model_type="gemma3", text_config=dict(model_type="gemma3_text", hidden_size=2560, intermediate_size=10240,
                                              num_hidden_layers=34),
        vision_config=dict(model_type="siglip_vision_model", hidden_size=1152, intermediate_size=4304,
                           num_hidden_layers=2, num_attention_heads=16, image_size=896, patch_size=14)), dense(34)),
    "glm-4.5-air": ("glm4-moe", "Glm4MoeForCausalLM", dict(
        model_type="glm4_moe", hidden_size=4096, intermediate_size=10944, moe_intermediate_size=1408,
        num_hidden_layers=46, num_attention_heads=96, num_key_value_heads=8, head_dim=128, n_routed_experts=128,
        n_shared_experts=1, first_k_dense_replace=1, num_nextn_predict_layers=1, attention_bias=True,
        use_qk_norm=False, vocab_size=151552, tie_word_embeddings=False), 46 * 3 + 1 + 45 * (1 + 128)),
    "glm-4-32b": ("glm4", "Glm4ForCausalLM", dict(
        model_type="glm4", hidden_size=6144, intermediate_size=23040, num_hidden_layers=61, num_attention_heads=48,
        num_key_value_heads=2, head_dim=128, attention_bias=False, vocab_size=151552, tie_word_embeddings=False),
        dense(61)),
    "gpt-oss-20b-bf16": ("gpt-oss", "GptOssForCausalLM", dict(
        model_type="gpt_oss", hidden_size=2880, intermediate_size=2880, num_hidden_layers=24, num_attention_heads=64,
        num_key_value_heads=8, head_dim=64, num_local_experts=32, vocab_size=201088, tie_word_embeddings=False),
        24 * 3),
    "phi-4": ("phi3", "Phi3ForCausalLM", dict(
        model_type="phi3", hidden_size=5120, intermediate_size=17920, num_hidden_layers=40, num_attention_heads=40,
        num_key_value_heads=10, vocab_size=100352, tie_word_embeddings=False), dense(40)),
    "command-r-plus": ("cohere", "CohereForCausalLM", dict(
        model_type="cohere", hidden_size=12288, intermediate_size=33792, num_hidden_layers=64, num_attention_heads=96,
        num_key_value_heads=8, use_qk_norm=True, vocab_size=256000), 64 * 3),
    "llama-4-scout": ("llama4", "Llama4ForConditionalGeneration", dict(
        model_type="llama4", text_config=dict(
            model_type="llama4_text", hidden_size=5120, intermediate_size=8192, intermediate_size_mlp=16384,
            num_hidden_layers=48, num_attention_heads=40, num_key_value_heads=8, head_dim=128, num_local_experts=16,
            interleave_moe_layer_step=1, vocab_size=202048),
        vision_config=dict(model_type="llama4_vision_model", hidden_size=1408, intermediate_size=5632,
                           num_hidden_layers=2, num_attention_heads=16)), 48 * (3 + 1 + 16)),
    "olmo-2-32b": ("olmo2", "Olmo2ForCausalLM", dict(
        model_type="olmo2", hidden_size=5120, intermediate_size=27648, num_hidden_layers=64, num_attention_heads=40,
        num_key_value_heads=8, vocab_size=100352, tie_word_embeddings=False), 64 * 2),
}

# Cases of tiny_models.py for what the releases above do not show -> (architecture, number of folds).
TINY = {
    "gemma4": ("gemma4", 6 * 3),
    "gemma4-moe": ("gemma4", 4 * (3 + 1 + 4)),
    "glm-5": ("deepseek-v3.2", 3 * 5 + 1 + 2 * (1 + 4)),
    "qwen3-vl": ("qwen3", dense(2)),
    "qwen3.5": ("qwen3.5", dense(3)),
    "qwen3.5-moe-vl": ("qwen3.5", 3 * (3 + 1 + 4)),
}

# A drafter, which no class of transformers describes; qkv reads two normed vectors side by side.
EAGLE3 = dict(model_type="llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=1,
              num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, draft_vocab_size=32000,
              tie_word_embeddings=False)
EAGLE3_TENSORS = {
    "d2t": [32000], "t2d": [128256], "fc.weight": [4096, 3 * 4096], "norm.weight": [4096],
    "lm_head.weight": [32000, 4096], "midlayer.hidden_norm.weight": [4096], "midlayer.input_layernorm.weight": [4096],
    "midlayer.post_attention_layernorm.weight": [4096], "midlayer.self_attn.q_proj.weight": [4096, 8192],
    "midlayer.self_attn.k_proj.weight": [1024, 8192], "midlayer.self_attn.v_proj.weight": [1024, 8192],
    "midlayer.self_attn.o_proj.weight": [4096, 4096], "midlayer.mlp.gate_proj.weight": [14336, 4096],
    "midlayer.mlp.up_proj.weight": [14336, 4096], "midlayer.mlp.down_proj.weight": [4096, 14336]}


def tensors(name, class_name, config):
    """Name -> shape, of a release."""
    cls = getattr(transformers, class_name)
    extra = config.get("num_nextn_predict_layers", 0)
    layers = config.get("num_hidden_layers")
    keys = {key: value for key, value in config.items() if key != "model_type"}
    if extra:
        keys["num_hidden_layers"] = layers + extra
    with torch.device("meta"):
        model = cls._from_config(cls.config_class(**keys))
    state = model.state_dict()
    if model.config.get_text_config().tie_word_embeddings:
        state.pop("lm_head.weight")
    found = {name: list(tensor.shape) for name, tensor in revert_weight_conversion(model, state).items()}
    for layer in range(extra):
        found |= mtp(layers + layer, config["hidden_size"], config["vocab_size"])
    if name in QWEN_MTP:
        found |= qwen_mtp(found, QWEN_MTP[name], is_stacked="moe" in name)
    return found


def ranges(numbers):
    """[0, 1, 2, 5] as 0-2,5."""
    runs = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def compress(found):
    """Lines of pattern and shape: numbers of layers, and of experts in them, as ranges in brackets."""
    groups = {}
    for name, shape in found.items():
        numbers = re.findall(r"(?<=\.)\d+(?=\.)", name)
        pattern = re.sub(r"(?<=\.)\d+(?=\.)", "[]", name)
        inner = tuple(numbers[1:2]) if len(numbers) == 2 else tuple(numbers[1:])
        groups.setdefault((pattern, tuple(shape)), {}).setdefault(numbers[0] if numbers else "", []).append(inner)
    lines = []
    for (pattern, shape), layers in groups.items():
        same = {}
        for layer, inner in layers.items():
            same.setdefault(tuple(sorted(inner)), []).append(layer)
        for inner, numbers in same.items():
            parts = [ranges(map(int, numbers))] if numbers != [""] else []
            if inner != ((),):
                assert all(len(item) == 1 for item in inner), pattern
                parts.append(ranges(int(item[0]) for item in inner))
            filled = pattern
            for part in parts:
                filled = filled.replace("[]", f"[{part}]", 1)
            assert "[]" not in filled, filled
            lines.append([filled, list(shape)])
    return lines


def write(name, architecture, class_name, config, folds, found):
    lines = ",\n".join("    " + json.dumps(line) for line in compress(found))
    config = json.dumps({"architectures": [class_name], **config})
    (FOLDER / f"{name}.json").write_text(
        f'{{\n  "config": {config},\n  "architecture": "{architecture}",\n  "tensors": {len(found)},\n'
        f'  "folds": {folds},\n  "header": [\n{lines}\n  ]\n}}\n')
    print(f"{name}: {len(found)} tensors, {folds} folds")


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, (architecture, class_name, config, folds) in RELEASES.items():
        write(name, architecture, class_name, config, folds, tensors(name, class_name, config))
    for case, (architecture, folds) in TINY.items():
        class_name, config = tiny_models.CASES[case]
        write(f"tiny-{case}", architecture, class_name, config, folds, tensors(f"tiny-{case}", class_name, config))
    write("eagle3-llama-3.1-8b", "eagle3", "LlamaForCausalLMEagle3", EAGLE3, 5, EAGLE3_TENSORS)


if __name__ == "__main__":
    main()
