"""Tiny checkpoints of Qwen3.5, Gemma 3 and Gemma 4, in the names and shapes of those that are published: quantized as they are
on the hub, and the values that they stand for, in F32 under the names of transformers' modules."""

import json

import numpy as np

from coded_weights import E4M3, KINDS, fp8_codes, plain, small, spread, to_bf16, to_f32
from jobs import write_safetensors

HIDDEN, INNER, VOCAB, EXPERTS, EXPERT, TOP = 256, 192, 64, 4, 192, 2
HEADS, KV_HEADS, HEAD = 4, 2, 64
KEY_HEADS, KEY_HEAD, VALUE_HEADS, VALUE_HEAD, TAPS = 2, 64, 4, 64, 4  # of linear attention
FULL_KV_HEADS, FULL_HEAD = 1, 128  # of Gemma 4's layers with full attention
ROPE = {"rope_theta": 10000.0, "rope_type": "default"}


def square_blocks(side, dtype="BF16"):
    """FP8 with a scale for each side x side, as the hub's FP8 checkpoints; of one matrix or of stacked ones."""
    def make(random, *shape):
        codes = fp8_codes(random, shape)
        counts = [-(-size // side) for size in shape[-2:]]
        scales = small(random, (*shape[:-2], *counts), -9)
        stored = to_bf16(scales) if dtype == "BF16" else scales
        scales = to_f32(stored) if dtype == "BF16" else scales
        matrices = scales.reshape(-1, *counts)
        spreaded = np.stack([spread(part, shape[-2:], (side, side)) for part in matrices]).reshape(shape)
        return {"": ("F8_E4M3", codes), "_scale_inv": (dtype, stored)}, E4M3[codes] * spreaded
    return make


def of_kind(name):
    """A maker of coded_weights, with the suffixes of a weight that is called X instead of X.weight."""
    def make(random, *shape):
        tensors, values = KINDS[name](random, *shape)
        return {suffix.removeprefix(".weight"): tensor for suffix, tensor in tensors.items()}, values
    return make


class Source:
    """tensors: name -> (dtype, array) as stored below `prefix`; values: name in transformers -> F32."""

    def __init__(self, make, quantization, prefix="model."):
        self.random, self.make, self.quantization, self.prefix = np.random.default_rng(7), make, quantization, prefix
        self.tensors, self.values = {}, {}

    def add(self, name, *shape, make=None, prefix=None):
        """A weight; what is not said to be quantized is BF16."""
        tensors, values = (make or of_kind("plain"))(self.random, *shape)
        where = self.prefix if prefix is None else prefix
        self.tensors.update({where + name + suffix: tensor for suffix, tensor in tensors.items()})
        self.values[("model." if prefix is None else prefix) + name] = values

    def linear(self, name, *shape):
        self.add(name + ".weight", *shape, make=self.make)

    def vector(self, name, size, center):
        stored = to_bf16(center + self.random.normal(0, .1, size))
        self.tensors[self.prefix + name] = ("BF16", stored)
        self.values["model." + name] = to_f32(stored)

    def left_out(self, name):
        """A weight of a part that JAX models of the text do without."""
        tensors, _ = plain(self.random, 8, 8)
        self.tensors[name + ".weight"] = tensors[".weight"]

    def fused_experts(self, at):
        """One tensor of all experts' gate and up, one of their down, as in transformers."""
        self.add(at + "gate_up_proj", EXPERTS, 2 * EXPERT, HIDDEN, make=self.make)
        self.add(at + "down_proj", EXPERTS, HIDDEN, EXPERT, make=self.make)

    def single_experts(self, at):
        """Each expert's matrices for themselves, as FP8 checkpoints have them."""
        values = {"gate": [], "up": [], "down": []}
        for expert in range(EXPERTS):
            for part, shape in {"gate": (EXPERT, HIDDEN), "up": (EXPERT, HIDDEN), "down": (HIDDEN, EXPERT)}.items():
                name = f"{at}{expert}.{part}_proj.weight"
                self.add(name, *shape, make=self.make)
                values[part].append(self.values.pop("model." + name))
        self.values[f"model.{at}gate_up_proj"] = np.concatenate([np.stack(values["gate"]), np.stack(values["up"])], 1)
        self.values[f"model.{at}down_proj"] = np.stack(values["down"])

    def save(self, folder):
        """folder/source as published, in two files; folder/plain its values, for programs that know no codes."""
        names = list(self.tensors)
        half = len(names) // 2
        for name, config in {"source": {**self.config(), "quantization_config": self.quantization}, "plain": self.text_config()}.items():
            (folder / name).mkdir(parents=True)
            (folder / name / "config.json").write_text(json.dumps(config))
        for file, part in enumerate((names[:half], names[half:])):
            write_safetensors(folder / "source" / f"model-{file + 1:05}-of-00002.safetensors", {name: self.tensors[name] for name in part})
        self.save_plain(folder / "plain", "model.")
        return folder / "source"

    def save_plain(self, folder, prefix):
        folder.mkdir(exist_ok=True)
        write_safetensors(folder / "model.safetensors", {
            (prefix + name.removeprefix("model.") if name.startswith("model.") else name): ("F32", np.ascontiguousarray(values, "<f4"))
            for name, values in self.values.items()})


class Qwen35(Source):
    """A mixture of experts whose layers have linear attention, but for every `interval`-th."""

    def __init__(self, make, quantization, layers, interval, fused):
        super().__init__(make, quantization, "model.language_model.")
        self.layers, self.interval = layers, interval
        self.add("embed_tokens.weight", VOCAB, HIDDEN)
        self.add("lm_head.weight", VOCAB, HIDDEN, prefix="")
        self.vector("norm.weight", HIDDEN, 0)
        for index in range(layers):
            at = f"layers.{index}."
            self.vector(at + "input_layernorm.weight", HIDDEN, 0)
            self.vector(at + "post_attention_layernorm.weight", HIDDEN, 0)
            (self.attention if (index + 1) % interval == 0 else self.linear_attention)(at)
            self.add(at + "mlp.gate.weight", EXPERTS, HIDDEN)
            self.add(at + "mlp.shared_expert_gate.weight", 1, HIDDEN)
            for part, shape in {"gate": (EXPERT, HIDDEN), "up": (EXPERT, HIDDEN), "down": (HIDDEN, EXPERT)}.items():
                self.linear(f"{at}mlp.shared_expert.{part}_proj", *shape)
            (self.fused_experts if fused else self.single_experts)(at + "mlp.experts.")
        self.left_out("model.visual.patch_embed.proj")
        self.left_out("mtp.fc")

    def attention(self, at):
        self.linear(at + "self_attn.q_proj", 2 * HEADS * HEAD, HIDDEN)
        self.linear(at + "self_attn.k_proj", KV_HEADS * HEAD, HIDDEN)
        self.linear(at + "self_attn.v_proj", KV_HEADS * HEAD, HIDDEN)
        self.linear(at + "self_attn.o_proj", HIDDEN, HEADS * HEAD)
        self.vector(at + "self_attn.q_norm.weight", HEAD, 0)
        self.vector(at + "self_attn.k_norm.weight", HEAD, 0)

    def linear_attention(self, at):
        keys, values = KEY_HEADS * KEY_HEAD, VALUE_HEADS * VALUE_HEAD
        self.linear(at + "linear_attn.in_proj_qkv", 2 * keys + values, HIDDEN)
        self.linear(at + "linear_attn.in_proj_z", values, HIDDEN)
        self.linear(at + "linear_attn.out_proj", HIDDEN, values)
        self.add(at + "linear_attn.in_proj_a.weight", VALUE_HEADS, HIDDEN)
        self.add(at + "linear_attn.in_proj_b.weight", VALUE_HEADS, HIDDEN)
        self.vector(at + "linear_attn.A_log", VALUE_HEADS, 1)
        self.vector(at + "linear_attn.dt_bias", VALUE_HEADS, 1)
        self.vector(at + "linear_attn.norm.weight", VALUE_HEAD, 1)
        stored = to_bf16(self.random.normal(0, .3, (2 * keys + values, 1, TAPS)))
        self.tensors[f"{self.prefix}{at}linear_attn.conv1d.weight"] = ("BF16", stored)
        self.values[f"model.{at}linear_attn.conv1d.weight"] = to_f32(stored)

    def text_config(self):
        return {"model_type": "qwen3_5_moe_text", "architectures": ["Qwen3_5MoeForCausalLM"], "hidden_size": HIDDEN, "vocab_size": VOCAB,
                "num_hidden_layers": self.layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
                "linear_num_key_heads": KEY_HEADS, "linear_key_head_dim": KEY_HEAD, "linear_num_value_heads": VALUE_HEADS,
                "linear_value_head_dim": VALUE_HEAD, "linear_conv_kernel_dim": TAPS, "full_attention_interval": self.interval,
                "num_experts": EXPERTS, "num_experts_per_tok": TOP, "moe_intermediate_size": EXPERT,
                "shared_expert_intermediate_size": EXPERT, "tie_word_embeddings": False,
                "rope_parameters": {**ROPE, "partial_rotary_factor": .25}}

    def config(self):
        return {"model_type": "qwen3_5_moe", "architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": self.text_config(),
                "tie_word_embeddings": False}


class Gemma4(Source):
    """Layers of sliding and of full attention in turn; in the latter values are the keys. Experts beside each MLP."""

    def __init__(self, make, quantization, fused):
        super().__init__(make, quantization, "model.language_model.")
        self.layer_types = ["sliding_attention", "full_attention"]
        self.add("embed_tokens.weight", VOCAB, HIDDEN)
        self.vector("norm.weight", HIDDEN, 1)
        for index, kind in enumerate(self.layer_types):
            at = f"layers.{index}."
            for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
                         "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
                self.vector(f"{at}{norm}.weight", HIDDEN, 1)
            self.attention(at, kind == "full_attention")
            self.linear(at + "mlp.gate_proj", INNER, HIDDEN)
            self.linear(at + "mlp.up_proj", INNER, HIDDEN)
            self.linear(at + "mlp.down_proj", HIDDEN, INNER)
            self.add(at + "router.proj.weight", EXPERTS, HIDDEN)
            self.vector(at + "router.scale", HIDDEN, 1)
            self.vector(at + "router.per_expert_scale", EXPERTS, 1)
            self.vector(at + "layer_scalar", 1, 1)
            (self.fused_experts if fused else self.single_experts)(at + "experts.")
        self.left_out("model.vision_tower.patch_embedder")

    def attention(self, at, is_full):
        head, kv_heads = (FULL_HEAD, FULL_KV_HEADS) if is_full else (HEAD, KV_HEADS)
        self.linear(at + "self_attn.q_proj", HEADS * head, HIDDEN)
        self.linear(at + "self_attn.k_proj", kv_heads * head, HIDDEN)
        if not is_full:
            self.linear(at + "self_attn.v_proj", kv_heads * head, HIDDEN)
        self.linear(at + "self_attn.o_proj", HIDDEN, HEADS * head)
        self.vector(at + "self_attn.q_norm.weight", head, 1)
        self.vector(at + "self_attn.k_norm.weight", head, 1)

    def text_config(self):
        return {"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], "hidden_size": HIDDEN, "vocab_size": VOCAB,
                "num_hidden_layers": len(self.layer_types), "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
                "head_dim": HEAD, "global_head_dim": FULL_HEAD, "num_global_key_value_heads": FULL_KV_HEADS, "attention_k_eq_v": True,
                "intermediate_size": INNER, "enable_moe_block": True, "num_experts": EXPERTS, "top_k_experts": TOP,
                "moe_intermediate_size": EXPERT, "layer_types": self.layer_types, "sliding_window": 512,
                "hidden_size_per_layer_input": 0, "tie_word_embeddings": True, "final_logit_softcapping": 30.0}

    def config(self):
        return {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "text_config": self.text_config(),
                "tie_word_embeddings": True}


class Gemma3(Source):
    def __init__(self, make, quantization, layers=2):
        super().__init__(make, quantization)
        self.layers = layers
        self.add("embed_tokens.weight", VOCAB, HIDDEN)
        self.vector("norm.weight", HIDDEN, 0)
        for index in range(layers):
            at = f"layers.{index}."
            for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
                self.vector(f"{at}{norm}.weight", HIDDEN, 0)
            self.linear(at + "self_attn.q_proj", HEADS * HEAD, HIDDEN)
            self.linear(at + "self_attn.k_proj", KV_HEADS * HEAD, HIDDEN)
            self.linear(at + "self_attn.v_proj", KV_HEADS * HEAD, HIDDEN)
            self.linear(at + "self_attn.o_proj", HIDDEN, HEADS * HEAD)
            self.vector(at + "self_attn.q_norm.weight", HEAD, 0)
            self.vector(at + "self_attn.k_norm.weight", HEAD, 0)
            self.linear(at + "mlp.gate_proj", INNER, HIDDEN)
            self.linear(at + "mlp.up_proj", INNER, HIDDEN)
            self.linear(at + "mlp.down_proj", HIDDEN, INNER)

    def text_config(self):
        return {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_size": HIDDEN, "vocab_size": VOCAB,
                "num_hidden_layers": self.layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
                "intermediate_size": INNER, "tie_word_embeddings": True}

    def config(self):
        return self.text_config()
