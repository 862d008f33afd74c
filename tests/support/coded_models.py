"""Small language models whose linears are stored as any of coded_weights.KINDS, in files as Hugging Face has them."""
import json

import numpy as np

from coded_weights import CONFIGS, KINDS, plain, to_bf16, to_f32
from jobs import write_safetensors

HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, HEAD, EXPERTS, EXPERT = 256, 384, 64, 4, 2, 64, 4, 192


class CodedModel:
    """tensors: name -> (dtype, array) as stored; values: name of a weight -> F32, as the model sees it [out, in]."""

    def __init__(self, kind, layers=2, experts=0, seed=5, kinds=None):
        self.random = np.random.default_rng(seed)
        self.kind, self.kinds, self.layers, self.experts = kind, kinds or {}, layers, experts
        self.tensors, self.values = {}, {}
        self.linear("model.embed_tokens", VOCAB, HIDDEN, plain)
        self.linear("lm_head", VOCAB, HIDDEN, plain)
        self.norm("model.norm", HIDDEN)
        for layer in range(layers):
            self.layer(f"model.layers.{layer}.")

    def layer(self, at):
        self.norm(at + "input_layernorm", HIDDEN)
        self.norm(at + "post_attention_layernorm", HIDDEN)
        self.linear(at + "self_attn.q_proj", HEADS * HEAD, HIDDEN)
        self.linear(at + "self_attn.k_proj", KV_HEADS * HEAD, HIDDEN)
        self.linear(at + "self_attn.v_proj", KV_HEADS * HEAD, HIDDEN)
        self.linear(at + "self_attn.o_proj", HIDDEN, HEADS * HEAD)
        if not self.experts:
            self.mlp(at + "mlp.", INNER)
            return
        self.norm(at + "self_attn.q_norm", HEAD)
        self.norm(at + "self_attn.k_norm", HEAD)
        self.linear(at + "mlp.gate", self.experts, HIDDEN, plain)
        for expert in range(self.experts):
            self.mlp(f"{at}mlp.experts.{expert}.", EXPERT)

    def mlp(self, at, size):
        self.linear(at + "gate_proj", size, HIDDEN)
        self.linear(at + "up_proj", size, HIDDEN)
        self.linear(at + "down_proj", HIDDEN, size)

    def linear(self, name, rows, cols, make=None):
        tensors, values = (make or KINDS[self.kinds.get(name, self.kind)])(self.random, rows, cols)
        self.tensors.update({name + suffix: value for suffix, value in tensors.items()})
        self.values[name + ".weight"] = values

    def norm(self, name, size):
        stored = to_bf16(1 + self.random.normal(0, .1, size))
        self.tensors[name + ".weight"] = ("BF16", stored)
        self.values[name + ".weight"] = to_f32(stored)

    def config(self):
        config = {"hidden_size": HIDDEN, "num_hidden_layers": self.layers, "num_attention_heads": HEADS,
                  "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCAB, "intermediate_size": INNER,
                  "tie_word_embeddings": False}
        if self.kind in CONFIGS:
            config["quantization_config"] = CONFIGS[self.kind]
        if self.experts:
            return {**config, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": self.experts,
                    "moe_intermediate_size": EXPERT, "num_experts_per_tok": 2}
        return {**config, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}

    def save(self, folder, files=2):
        """As `files` shards with an index."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config()))
        names = list(self.tensors)
        weight_map = {}
        for index in range(files):
            file = f"model-{index + 1:05}-of-{files:05}.safetensors"
            part = names[index * len(names) // files:(index + 1) * len(names) // files]
            write_safetensors(folder / file, {name: self.tensors[name] for name in part})
            weight_map.update({name: file for name in part})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return folder
