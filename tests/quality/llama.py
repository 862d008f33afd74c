"""A small Llama in plain torch, for measurements: loads original and quantized checkpoints, tells the inputs of linears,
and computes what a server would: products of BF16 operands, sums and everything between in F32, results of linears in BF16.
The operands are held in F32: the same numbers, and several times faster where a processor has no BF16 instructions."""
import torch
import torch.nn.functional as functional
from safetensors import safe_open

LINEARS = [*(f"self_attn.{part}_proj" for part in "qkvo"), *(f"mlp.{part}_proj" for part in ("gate", "up", "down"))]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def bf16(values):
    return values.to(torch.bfloat16).float()


def load(folder):
    """Name -> F32 tensor; MXFP4 decoded as layout quark stores it, and as compressed-tensors does (codes are X.weight_packed)."""
    stored = {}
    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(file, "pt") as tensors:  # amd-quark can wrap linears
            stored |= {name.replace(".orig_layer.", "."): tensors.get_tensor(name) for name in tensors.keys()}
    weights = {}
    for name, value in stored.items():
        if name.endswith("_scale"):
            continue
        name = name.removesuffix("_packed")
        if value.dtype == torch.uint8:
            codes = torch.stack([value & 15, value >> 4], -1).reshape(len(value), -1).long()
            scales = torch.exp2(stored[name + "_scale"].float() - 127)
            value = E2M1[codes] * scales.repeat_interleave(32, 1)
        weights[name] = value.float()
    return weights


def round_e2m1(values):
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with sign, ties to even: by adding the number whose last place is the step."""
    magnitudes = values.abs().clamp(max=6)
    binade = (magnitudes.contiguous().view(torch.int32) & 0x7F800000).clamp(min=0x3F800000)
    magic = (binade + (22 << 23)).view(torch.float32)
    return torch.copysign((magnitudes + magic) - magic, values)


def block_exponents(values, carry):
    """Of blocks of 32 in the last dimension: the exponent of the largest magnitude, less that of 4."""
    largest = values.reshape(*values.shape[:-1], -1, 32).abs().amax(-1).contiguous().view(torch.int32)
    return torch.where(largest > 0, ((largest + carry) >> 23) - 129, 0)


def round_mxfp4(values, exponents, rounding=round_e2m1):
    scales = torch.exp2(exponents.float()).unsqueeze(-1)
    blocks = values.reshape(*values.shape[:-1], -1, 32)
    return (rounding(blocks / scales) * scales).reshape(values.shape)


def round_activations(values):
    """As servers do: scale rule even."""
    values = bf16(values)
    return round_mxfp4(values, block_exponents(values, 0x200000).clamp(min=-126))


class Llama:
    def __init__(self, weights, config, quantizes_activations=False):
        self.weights = {name: bf16(value) if name.endswith("_proj.weight") else value for name, value in weights.items()}
        self.layers = config["num_hidden_layers"]
        self.epsilon = config["rms_norm_eps"]
        self.head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        frequencies = theta ** -(torch.arange(0, self.head, 2).float() / self.head)
        angles = torch.outer(torch.arange(2048).float(), frequencies).repeat(1, 2)
        self.cosine, self.sine = angles.cos(), angles.sin()
        self.prepare = round_activations if quantizes_activations else lambda values: values

    def norm(self, x, name):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weights[name]

    def rotate(self, x):
        length, half = x.shape[2], self.head // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * self.cosine[:length] + turned * self.sine[:length]

    @torch.no_grad()
    def logits(self, tokens):
        """[rows, length, vocabulary] of tokens [rows, length]."""
        return functional.linear(self.states(tokens), self.weights["model.embed_tokens.weight"])

    @torch.no_grad()
    def states(self, tokens, seen=None):
        """What the head reads, [rows, length, hidden]; `seen(linear, input)` is called for every linear that is alone or the
        first of those with the same input."""
        rows, length = tokens.shape
        x = self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(self.layers):
            at = f"model.layers.{layer}."

            def inputs(values, name):
                values = bf16(self.prepare(values))
                if seen:
                    seen(at + name, values)
                return lambda part: bf16(functional.linear(values, self.weights[f"{at}{part}.weight"]))

            linear = inputs(self.norm(x, at + "input_layernorm.weight"), "self_attn.q_proj")
            q, k, v = (linear(f"self_attn.{part}_proj").view(rows, length, -1, self.head).transpose(1, 2) for part in "qkv")
            attended = functional.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
            linear = inputs(attended.transpose(1, 2).reshape(rows, length, -1), "self_attn.o_proj")
            x = x + linear("self_attn.o_proj")
            linear = inputs(self.norm(x, at + "post_attention_layernorm.weight"), "mlp.gate_proj")
            linear = inputs(functional.silu(linear("mlp.gate_proj")) * linear("mlp.up_proj"), "mlp.down_proj")
            x = x + linear("mlp.down_proj")
        return self.norm(x, "model.norm.weight")
