"""Gemma 4's text model in flax.nnx with the parameters of Qwix's document, as small as qwix_sources has it: it computes what
transformers' Gemma4ForCausalLM does. Experts lie directly below the layer."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from qwix_layers import FusedMlp, Norm, RaggedExperts, attended, dense, normalized, rotated, routed
from qwix_sources import (EXPERT, EXPERTS, FULL_HEAD, FULL_KV_HEADS, HEAD, HEADS, HIDDEN, INNER, KV_HEADS, TOP, VOCAB)

gelu = functools.partial(jax.nn.gelu, approximate=True)


class Attention(nnx.Module):
    """Layers with full attention have larger heads, of which a quarter is turned, and values that are the keys."""

    def __init__(self, rngs, is_full):
        self.head, self.kv_heads = (FULL_HEAD, FULL_KV_HEADS) if is_full else (HEAD, KV_HEADS)
        self.q_proj = dense(HIDDEN, HEADS * self.head, rngs)
        self.k_proj = dense(HIDDEN, self.kv_heads * self.head, rngs)
        if not is_full:
            self.v_proj = dense(HIDDEN, self.kv_heads * self.head, rngs)
        self.o_proj = dense(HEADS * self.head, HIDDEN, rngs)
        self.q_norm, self.k_norm = Norm(self.head, rngs), Norm(self.head, rngs)

    def __call__(self, x):
        batch, time, _ = x.shape
        is_full = not hasattr(self, "v_proj")
        q = self.q_proj(x).reshape(batch, time, HEADS, self.head)
        k = self.k_proj(x).reshape(batch, time, self.kv_heads, self.head)
        v = k if is_full else self.v_proj(x).reshape(k.shape)
        theta, angles = (1e6, self.head // 8) if is_full else (1e4, self.head // 2)
        q, k = (rotated(part, theta, angles, self.head) for part in (self.q_norm(q), self.k_norm(k)))
        return self.o_proj(attended(q, k, normalized(v), 1).reshape(batch, time, -1))


class Router(nnx.Module):
    def __init__(self, rngs):
        self.proj = dense(HIDDEN, EXPERTS, rngs)
        self.scale, self.per_expert_scale = nnx.Param(jnp.ones(HIDDEN)), nnx.Param(jnp.ones(EXPERTS))

    def __call__(self, x):
        weights, chosen = routed(self.proj(normalized(x) * self.scale[...] * HIDDEN**-.5), TOP)
        return weights * self.per_expert_scale[...][chosen], chosen


class Layer(nnx.Module):
    def __init__(self, rngs, is_full):
        self.self_attn = Attention(rngs, is_full)
        self.mlp = FusedMlp(HIDDEN, INNER, rngs, gelu)
        self.router = Router(rngs)
        self.experts = RaggedExperts(EXPERTS, HIDDEN, EXPERT, rngs, gelu)
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
                     "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
            setattr(self, norm, Norm(HIDDEN, rngs))
        self.layer_scalar = nnx.Param(jnp.ones(1))

    def __call__(self, x):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x)))
        tokens = x.reshape(-1, HIDDEN)
        mixed = self.experts(self.pre_feedforward_layernorm_2(tokens), *self.router(tokens)).reshape(x.shape)
        both = self.post_feedforward_layernorm_1(self.mlp(self.pre_feedforward_layernorm(x))) + self.post_feedforward_layernorm_2(mixed)
        return (x + self.post_feedforward_layernorm(both)) * self.layer_scalar[...]


class Gemma4(nnx.Module):
    def __init__(self, layer_types):
        rngs = nnx.Rngs(0)
        self.embed_tokens = nnx.Embed(VOCAB, HIDDEN, rngs=rngs)
        self.layers = nnx.List([Layer(rngs, kind == "full_attention") for kind in layer_types])
        self.norm = Norm(HIDDEN, rngs)

    def __call__(self, tokens):
        x = self.embed_tokens(tokens) * HIDDEN**.5
        for layer in self.layers:
            x = layer(x)
        return 30 * jnp.tanh(self.norm(x) @ self.embed_tokens.embedding[...].T / 30)
