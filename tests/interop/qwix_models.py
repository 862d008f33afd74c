"""flax.nnx models whose parameters are called as src/jax_models/*.json call them, for weights of coded_models.CodedModel:
layers in a list, in a dict by number, or stacked for nnx.scan; experts that Qwix sees (einsum) and that it does not."""

import jax
import jax.numpy as jnp
from flax import nnx

from coded_models import EXPERT, HEAD, HEADS, HIDDEN, INNER, KV_HEADS, VOCAB


def linear(inputs, outputs, rngs, dtype):
    return nnx.Linear(inputs, outputs, use_bias=False, rngs=rngs, param_dtype=dtype, dtype=dtype)


class Attention(nnx.Module):
    def __init__(self, rngs, spec):
        self.q_proj = linear(HIDDEN, HEADS * HEAD, rngs, spec.dtype)
        self.k_proj = linear(HIDDEN, KV_HEADS * HEAD, rngs, spec.dtype)
        self.v_proj = linear(HIDDEN, KV_HEADS * HEAD, rngs, spec.dtype)
        self.o_proj = linear(HEADS * HEAD, HIDDEN, rngs, spec.dtype)
        if spec.experts:
            self.q_norm = nnx.RMSNorm(HEAD, rngs=rngs, param_dtype=spec.dtype)
            self.k_norm = nnx.RMSNorm(HEAD, rngs=rngs, param_dtype=spec.dtype)

    def __call__(self, x):
        batch, time, _ = x.shape
        q = self.q_proj(x).reshape(batch, time, HEADS, HEAD)
        k = self.k_proj(x).reshape(batch, time, KV_HEADS, HEAD)
        v = self.v_proj(x).reshape(batch, time, KV_HEADS, HEAD)
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        k, v = (jnp.repeat(part, HEADS // KV_HEADS, axis=2) for part in (k, v))
        scores = jax.nn.softmax(jnp.sum(q[:, :, None] * k[:, None], -1) / HEAD**.5, axis=2)
        return self.o_proj(jnp.sum(scores[..., None] * v[:, None], axis=2).reshape(batch, time, HEADS * HEAD))


class Mlp(nnx.Module):
    def __init__(self, rngs, spec):
        self.fused = spec.fused
        if spec.fused:
            self.gate_up_proj = linear(HIDDEN, 2 * INNER, rngs, spec.dtype)
        else:
            self.gate_proj = linear(HIDDEN, INNER, rngs, spec.dtype)
            self.up_proj = linear(HIDDEN, INNER, rngs, spec.dtype)
        self.down_proj = linear(INNER, HIDDEN, rngs, spec.dtype)

    def __call__(self, x):
        gate, up = jnp.split(self.gate_up_proj(x), 2, -1) if self.fused else (self.gate_proj(x), self.up_proj(x))
        return self.down_proj(jax.nn.silu(gate) * up)


def parameter(rngs, *shape, dtype):
    return nnx.Param(jax.random.normal(rngs.params(), shape, dtype) * .02)


class EinsumExperts(nnx.Module):
    def __init__(self, rngs, spec):
        self.gate_proj = parameter(rngs, spec.experts, HIDDEN, EXPERT, dtype=spec.dtype)
        self.up_proj = parameter(rngs, spec.experts, HIDDEN, EXPERT, dtype=spec.dtype)
        self.down_proj = parameter(rngs, spec.experts, EXPERT, HIDDEN, dtype=spec.dtype)

    def __call__(self, x):
        gate = jnp.einsum("ecd,edf->ecf", x, self.gate_proj[...])
        up = jnp.einsum("ecd,edf->ecf", x, self.up_proj[...])
        return jnp.einsum("ecf,efd->ecd", jax.nn.silu(gate) * up, self.down_proj[...])


def decoded(weight, dtype):
    """What a kernel makes of a parameter: of codes in square blocks their values."""
    if not isinstance(weight, dict):
        return weight[...]
    codes, scales = weight["array"]["qvalue"][...], weight["array"]["scale"][...]
    for axis in (1, 2):
        scales = jnp.repeat(scales, codes.shape[axis] // scales.shape[axis], axis)
    return (codes.astype(scales.dtype) * scales).astype(dtype)


class OpaqueExperts(nnx.Module):
    def __init__(self, rngs, spec):
        self.dtype = spec.dtype
        self.gate_up_proj_weight = parameter(rngs, spec.experts, HIDDEN, 2 * EXPERT, dtype=spec.dtype)
        self.down_proj_weight = parameter(rngs, spec.experts, EXPERT, HIDDEN, dtype=spec.dtype)

    def __call__(self, x):
        experts, tokens, _ = x.shape
        sizes = jnp.full((experts,), tokens)
        gate_up = jax.lax.ragged_dot(x.reshape(-1, HIDDEN), decoded(self.gate_up_proj_weight, self.dtype), sizes)
        gate, up = jnp.split(gate_up, 2, -1)
        result = jax.lax.ragged_dot(jax.nn.silu(gate) * up, decoded(self.down_proj_weight, self.dtype), sizes)
        return result.reshape(experts, tokens, HIDDEN)


class Mixture(nnx.Module):
    """Every expert sees every token; the router weighs their results."""

    def __init__(self, rngs, spec):
        self.gate = linear(HIDDEN, spec.experts, rngs, spec.dtype)
        self.experts = (OpaqueExperts if spec.opaque else EinsumExperts)(rngs, spec)

    def __call__(self, x):
        batch, time, _ = x.shape
        flat = x.reshape(-1, HIDDEN)
        weights = jax.nn.softmax(self.gate(flat), -1)
        results = self.experts(jnp.broadcast_to(flat, (weights.shape[1], *flat.shape)))
        return jnp.sum(results * weights.T[..., None], 0).reshape(batch, time, HIDDEN)


class Layer(nnx.Module):
    def __init__(self, rngs, spec):
        self.input_layernorm = nnx.RMSNorm(HIDDEN, rngs=rngs, param_dtype=spec.dtype)
        self.post_attention_layernorm = nnx.RMSNorm(HIDDEN, rngs=rngs, param_dtype=spec.dtype)
        self.self_attn = Attention(rngs, spec)
        self.mlp = Mixture(rngs, spec) if spec.experts else Mlp(rngs, spec)

    def __call__(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Spec:
    """What a model is built of. layers_as: "list", "dict" or "scan"."""

    def __init__(self, layers=2, layers_as="list", experts=0, opaque=False, fused=False, dtype=jnp.float32):
        self.layers, self.layers_as, self.experts = layers, layers_as, experts
        self.opaque, self.fused, self.dtype = opaque, fused, dtype


class Model(nnx.Module):
    def __init__(self, spec):
        rngs = nnx.Rngs(0)
        self.embed_tokens = nnx.Embed(VOCAB, HIDDEN, rngs=rngs, param_dtype=spec.dtype, dtype=spec.dtype)
        self.norm = nnx.RMSNorm(HIDDEN, rngs=rngs, param_dtype=spec.dtype)
        self.lm_head = linear(HIDDEN, VOCAB, rngs, spec.dtype)
        if spec.layers_as == "list":
            self.layers = nnx.List([Layer(rngs, spec) for _ in range(spec.layers)])
        elif spec.layers_as == "dict":
            self.layers = nnx.Dict({str(index): Layer(rngs, spec) for index in range(spec.layers)})
        else:
            self.layers = nnx.vmap(lambda key: Layer(nnx.Rngs(key), spec))(jax.random.split(jax.random.key(0), spec.layers))
        self.layers_as, self.num_layers = spec.layers_as, spec.layers

    def __call__(self, tokens):
        x = self.embed_tokens(tokens)
        if self.layers_as == "scan":
            x = nnx.scan(lambda layer, y: layer(y), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(self.layers, x)
        else:
            layers = self.layers if self.layers_as == "list" else [self.layers[str(i)] for i in range(self.num_layers)]
            for layer in layers:
                x = layer(x)
        return self.lm_head(self.norm(x))
