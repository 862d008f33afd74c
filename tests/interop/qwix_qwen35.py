"""Qwen3.5's text model in flax.nnx, as small as qwix_sources has it: it computes what transformers' Qwen3_5MoeForCausalLM does.
Qwix's document shows two spellings of its parameters: layers in a list, and blocks of layers that are scanned."""

import jax
import jax.numpy as jnp
from flax import nnx

from qwix_layers import FusedMlp, Norm, RaggedExperts, attended, dense, rotated, routed
from qwix_sources import (EXPERT, EXPERTS, HEAD, HEADS, HIDDEN, KEY_HEAD, KEY_HEADS, KV_HEADS, ROPE, TAPS, TOP, VALUE_HEAD,
                          VALUE_HEADS, VOCAB)


class Attention(nnx.Module):
    """With a gate for each output, which q_proj computes beside the queries."""

    def __init__(self, rngs):
        self.q_proj = dense(HIDDEN, 2 * HEADS * HEAD, rngs)
        self.k_proj, self.v_proj = dense(HIDDEN, KV_HEADS * HEAD, rngs), dense(HIDDEN, KV_HEADS * HEAD, rngs)
        self.o_proj = dense(HEADS * HEAD, HIDDEN, rngs)
        self.q_norm, self.k_norm = Norm(HEAD, rngs, 1), Norm(HEAD, rngs, 1)

    def __call__(self, x):
        batch, time, _ = x.shape
        q, gate = jnp.split(self.q_proj(x).reshape(batch, time, HEADS, 2 * HEAD), 2, -1)
        k, v = (project(x).reshape(batch, time, KV_HEADS, HEAD) for project in (self.k_proj, self.v_proj))
        turned = HEAD // 4
        q, k = (rotated(part, ROPE["rope_theta"], turned // 2, turned) for part in (self.q_norm(q), self.k_norm(k)))
        out = attended(q, k, v, HEAD**-.5) * jax.nn.sigmoid(gate)
        return self.o_proj(out.reshape(batch, time, HEADS * HEAD))


def delta_rule(q, k, v, decay, beta):
    """The gated delta rule, token by token: q, k [batch, time, head, key], v [batch, time, head, value], the others [batch, time, head]."""
    def step(state, token):
        q, k, v, decay, beta = token
        state = state * jnp.exp(decay)[..., None, None]
        change = (v - jnp.sum(state * k[..., None], -2)) * beta[..., None]
        state = state + k[..., None] * change[..., None, :]
        return state, jnp.sum(state * q[..., None], -2)

    def unit(x):
        return x * jax.lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-6)

    start = jnp.zeros((q.shape[0], q.shape[2], q.shape[3], v.shape[3]))
    tokens = [jnp.moveaxis(part, 1, 0) for part in (unit(q) * q.shape[3] ** -.5, unit(k), v, decay, beta)]
    return jnp.moveaxis(jax.lax.scan(step, start, tokens)[1], 0, 1)


class LinearAttention(nnx.Module):
    def __init__(self, rngs):
        keys, values = KEY_HEADS * KEY_HEAD, VALUE_HEADS * VALUE_HEAD
        channels = 2 * keys + values
        self.in_proj_qkv, self.in_proj_z = dense(HIDDEN, channels, rngs), dense(HIDDEN, values, rngs)
        self.in_proj_a, self.in_proj_b = dense(HIDDEN, VALUE_HEADS, rngs), dense(HIDDEN, VALUE_HEADS, rngs)
        self.out_proj = dense(values, HIDDEN, rngs)
        self.conv1d = nnx.Conv(channels, channels, TAPS, padding="CAUSAL", feature_group_count=channels, use_bias=False, rngs=rngs)
        self.A_log, self.dt_bias = nnx.Param(jnp.ones(VALUE_HEADS)), nnx.Param(jnp.ones(VALUE_HEADS))
        self.norm = Norm(VALUE_HEAD, rngs)

    def __call__(self, x):
        batch, time, _ = x.shape
        keys = KEY_HEADS * KEY_HEAD
        q, k, v = jnp.split(jax.nn.silu(self.conv1d(self.in_proj_qkv(x))), [keys, 2 * keys], -1)
        q, k = (jnp.repeat(part.reshape(batch, time, KEY_HEADS, KEY_HEAD), VALUE_HEADS // KEY_HEADS, 2) for part in (q, k))
        decay = -jnp.exp(self.A_log[...]) * jax.nn.softplus(self.in_proj_a(x) + self.dt_bias[...])
        shape = (batch, time, VALUE_HEADS, VALUE_HEAD)
        out = self.norm(delta_rule(q, k, v.reshape(shape), decay, jax.nn.sigmoid(self.in_proj_b(x))))
        out = out * jax.nn.silu(self.in_proj_z(x).reshape(shape))
        return self.out_proj(out.reshape(batch, time, -1))


class SharedExpert(nnx.Module):
    def __init__(self, rngs):
        self.gate_proj, self.up_proj = dense(HIDDEN, EXPERT, rngs), dense(HIDDEN, EXPERT, rngs)
        self.down_proj = dense(EXPERT, HIDDEN, rngs)

    def __call__(self, x):
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Mixture(nnx.Module):
    def __init__(self, rngs):
        self.gate, self.shared_expert_gate = dense(HIDDEN, EXPERTS, rngs), dense(HIDDEN, 1, rngs)
        self.experts = RaggedExperts(EXPERTS, HIDDEN, EXPERT, rngs, jax.nn.silu)
        self.shared_expert = SharedExpert(rngs)

    def __call__(self, x):
        tokens = x.reshape(-1, HIDDEN)
        mixed = self.experts(tokens, *routed(self.gate(tokens), TOP))
        return (mixed + jax.nn.sigmoid(self.shared_expert_gate(tokens)) * self.shared_expert(tokens)).reshape(x.shape)


class Layer(nnx.Module):
    def __init__(self, rngs, is_full):
        self.input_layernorm, self.post_attention_layernorm = Norm(HIDDEN, rngs, 1), Norm(HIDDEN, rngs, 1)
        if is_full:
            self.self_attn = Attention(rngs)
        else:
            self.linear_attn = LinearAttention(rngs)
        self.mlp = Mixture(rngs)

    def __call__(self, x):
        attention = self.self_attn if hasattr(self, "self_attn") else self.linear_attn
        x = x + attention(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


def scanned(layers, x):
    return nnx.scan(lambda layer, y: layer(y), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(layers, x)


class LinearLayers(nnx.Module):
    def __init__(self, rngs, count):
        keys = jax.random.split(rngs.params(), count)
        self.layers = nnx.vmap(lambda key: Layer(nnx.Rngs(key), False))(keys)


class Block(nnx.Module):
    def __init__(self, rngs, interval):
        self.linear_layers = LinearLayers(rngs, interval - 1)
        self.full_attn_layer = Layer(rngs, True)

    def __call__(self, x):
        return self.full_attn_layer(scanned(self.linear_layers.layers, x))


class Qwen35(nnx.Module):
    """Of `layers` layers with full attention in every `interval`-th, in a list or in blocks."""

    def __init__(self, layers, interval, in_blocks):
        rngs = nnx.Rngs(0)
        self.embed_tokens = nnx.Embed(VOCAB, HIDDEN, rngs=rngs)
        self.norm, self.lm_head = Norm(HIDDEN, rngs, 1), dense(HIDDEN, VOCAB, rngs)
        if in_blocks:
            self.blocks = nnx.vmap(lambda key: Block(nnx.Rngs(key), interval))(jax.random.split(jax.random.key(0), layers // interval))
        else:
            self.layers = nnx.List([Layer(rngs, (index + 1) % interval == 0) for index in range(layers)])

    def __call__(self, tokens):
        x = self.embed_tokens(tokens)
        if hasattr(self, "blocks"):
            x = scanned(self.blocks, x)
        else:
            for layer in self.layers:
                x = layer(x)
        return self.lm_head(self.norm(x))
