"""Parts that the tiny Qwen3.5 and Gemma 4 in flax.nnx have in common. Parameters are called as Qwix's document calls them."""

import jax
import jax.numpy as jnp
from flax import nnx

from qwix_models import decoded, parameter


def dense(inputs, outputs, rngs):
    return nnx.Linear(inputs, outputs, use_bias=False, rngs=rngs)


class Norm(nnx.Module):
    """RMS normalization; Qwen's weights are what is added to 1."""

    def __init__(self, size, rngs, offset=0.0):
        self.offset = offset
        self.scale = nnx.Param(jnp.ones(size))

    def __call__(self, x):
        return normalized(x) * (self.offset + self.scale[...])


def normalized(x):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def rotated(x, theta, angles, of):
    """Rotary embedding of [batch, time, head, dim] by the first `angles` of the frequencies theta^(-2i / of): those of the first
    2 * angles numbers where `of` is 2 * angles, else halves of the whole head."""
    frequencies = theta ** (-2 * jnp.arange(angles) / of)
    whole = of != 2 * angles
    if whole:
        frequencies = jnp.concatenate([frequencies, jnp.zeros(x.shape[-1] // 2 - angles)])
    turns = jnp.arange(x.shape[1])[:, None, None] * frequencies
    first, second, rest = jnp.split(x, [frequencies.size, 2 * frequencies.size], -1)
    cos, sin = jnp.cos(turns), jnp.sin(turns)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], -1)


def attended(q, k, v, scale):
    """Causal attention of heads [batch, time, head, dim], keys and values repeated for groups of queries."""
    k, v = (jnp.repeat(part, q.shape[2] // part.shape[2], 2) for part in (k, v))
    scores = jnp.sum(q[:, :, None] * k[:, None], -1) * scale
    time = jnp.arange(q.shape[1])
    scores = jnp.where((time[:, None] >= time)[None, :, :, None], scores, -jnp.inf)
    return jnp.sum(jax.nn.softmax(scores, 2)[..., None] * v[:, None], 2)


class FusedMlp(nnx.Module):
    def __init__(self, size, inner, rngs, activation):
        self.gate_up_proj = dense(size, 2 * inner, rngs)
        self.down_proj = dense(inner, size, rngs)
        self.activation = activation

    def __call__(self, x):
        gate, up = jnp.split(self.gate_up_proj(x), 2, -1)
        return self.down_proj(self.activation(gate) * up)


class RaggedExperts(nnx.Module):
    """Experts for which tokens are sorted, by ragged_dot, which Qwix does not see; it takes codes with square blocks too."""

    def __init__(self, experts, size, inner, rngs, activation):
        self.gate_up_proj_weight = parameter(rngs, experts, size, 2 * inner, dtype=jnp.float32)
        self.down_proj_weight = parameter(rngs, experts, inner, size, dtype=jnp.float32)
        self.experts, self.activation = experts, activation

    def __call__(self, x, weights, chosen):
        """Of tokens [tokens, size] and their experts and these experts' weights [tokens, top]."""
        top = chosen.shape[1]
        order = jnp.argsort(chosen.reshape(-1))
        sizes = jnp.bincount(chosen.reshape(-1), length=self.experts)
        sorted_tokens = jnp.repeat(x, top, 0)[order]
        gate, up = jnp.split(jax.lax.ragged_dot(sorted_tokens, decoded(self.gate_up_proj_weight, x.dtype), sizes), 2, -1)
        results = jax.lax.ragged_dot(self.activation(gate) * up, decoded(self.down_proj_weight, x.dtype), sizes)
        results = results[jnp.argsort(order)].reshape(*chosen.shape, -1)
        return jnp.sum(results * weights[..., None], 1)


def routed(logits, top):
    """The weights and numbers of the `top` experts of each token; weights add up to 1."""
    weights, chosen = jax.lax.top_k(jax.nn.softmax(logits, -1), top)
    return weights / jnp.sum(weights, -1, keepdims=True), chosen
