"""A Llama whose weights and inputs are drawn: what tests/quality/synthetic quantizes. Seeded; in plain numpy and torch.

Each linear has inputs of its own, drawn rather than computed by the model, of one of the regimes. All have what makes quantization
hard: channels of different size, few of them very large; channels that go together; rows of different size; columns of weights that
are small where inputs are large."""
import json

import numpy
import torch
from safetensors.torch import save_file

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS = 1024, 2048, 16, 8
REGIMES = ["mild", "strong", "ht", "down"]
SEEDS = 2
TOKENS_PER_CHANNEL = 16  # of calibration: fewer, and gptq would be measured by what it does without data (docs/statistics.md)
HELD_OUT = 2048
# The linears that read an input, named by the first of them, with their rows.
READERS = {"self_attn.q_proj": {"self_attn.q_proj": 1024, "self_attn.k_proj": 512, "self_attn.v_proj": 512},
           "mlp.gate_proj": {"mlp.gate_proj": INTERMEDIATE, "mlp.up_proj": INTERMEDIATE},
           "mlp.down_proj": {"mlp.down_proj": HIDDEN}}
NORMS = {"self_attn.q_proj": "input_layernorm", "mlp.gate_proj": "post_attention_layernorm"}
# Of the layers: inputs of norms are of the layer's regime, those of down_proj of regime down.
LAYERS = [(regime, seed) for regime in REGIMES[:3] for seed in range(SEEDS)]
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
          "num_hidden_layers": len(LAYERS), "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
          "head_dim": HIDDEN // HEADS, "vocab_size": 32, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "max_position_embeddings": 2048, "torch_dtype": "bfloat16"}


def regime_of(layer, reader):
    return "down" if reader == "mlp.down_proj" else LAYERS[layer][0]


def generator(layer, reader):
    return numpy.random.default_rng([LAYERS[layer][1], layer, list(READERS).index(reader)])


def log_normal(random, count, deviation):
    return torch.from_numpy(numpy.exp(deviation * random.standard_normal(count, dtype="f4")))


def normal(random, *shape):
    return torch.from_numpy(random.standard_normal(shape, dtype="f4"))


def correlated(random, count, channels, shared=0.7):
    """[count, channels] of unit variance, `shared` of it in a quarter as many dimensions, whose variances fall as 1/n."""
    rank = channels // 4
    mixing = normal(random, rank, channels) / torch.arange(1, rank + 1).sqrt().unsqueeze(1)
    mixing *= (shared / mixing.square().sum(0)).sqrt()
    return normal(random, count, rank) @ mixing + (1 - shared) ** 0.5 * normal(random, count, channels)


def with_outliers(random, sizes, share):
    chosen = torch.from_numpy(random.choice(len(sizes), round(share * len(sizes)), replace=False))
    factors = torch.ones(len(sizes))
    factors[chosen] = torch.from_numpy(random.uniform(5, 15, len(chosen)).astype("f4"))
    return sizes * factors, factors > 1


def make_inputs(random, regime, count, channels):
    if regime == "down":  # silu(gate) * up: hardly correlated any more
        gate = correlated(random, count, channels) * log_normal(random, channels, 0.5)
        return torch.nn.functional.silu(gate) * (correlated(random, count, channels) * log_normal(random, channels, 0.5))
    values = correlated(random, count, channels)
    if regime == "mild":
        return values * log_normal(random, channels, 0.4)
    sizes, outliers = with_outliers(random, log_normal(random, channels, 0.6), 0.008 if regime == "strong" else 0.004)
    if regime == "strong":  # outliers are on one side of zero
        values = torch.where(outliers, values + torch.from_numpy(random.choice([-1, 1], channels).astype("f4")), values)
    else:  # tails of their own, from normal to heavy
        tails = torch.from_numpy(random.uniform(0, 0.8, channels).astype("f4"))
        values *= torch.exp(tails * normal(random, count, channels) - tails.square())
    return values * sizes


def make_weights(random, regime, rows, input_sizes):
    """[rows, channels], BF16 held in F32."""
    shape = rows, len(input_sizes)
    draw = {"mild": lambda: random.standard_normal(shape), "strong": lambda: random.standard_t(5, shape),
            "down": lambda: random.standard_t(5, shape), "ht": lambda: random.laplace(size=shape)}[regime]
    values = torch.from_numpy(draw().astype("f4"))
    columns = (input_sizes / input_sizes.log().mean().exp()).pow(-0.3) * log_normal(random, len(input_sizes), 0.2)
    large = torch.from_numpy(random.choice(len(columns), round(0.01 * len(columns)), replace=False))
    columns[large] *= torch.from_numpy(random.uniform(3, 6, len(large)).astype("f4"))
    values *= log_normal(random, rows, 0.4).unsqueeze(1) * columns
    return (values * 0.02).to(torch.bfloat16).float()


def write(folder, recorder):
    """Writes the checkpoint, shows `recorder` the calibration, and returns (layer, first reader) -> held-out inputs."""
    folder.mkdir(parents=True)
    weights = {"model.embed_tokens.weight": torch.zeros(CONFIG["vocab_size"], HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    held_out = {}
    for layer in range(len(LAYERS)):
        at = f"model.layers.{layer}."
        weights[at + "self_attn.o_proj.weight"] = torch.zeros(HIDDEN, HIDDEN)  # has no inputs here
        for reader, parts in READERS.items():
            random, regime = generator(layer, reader), regime_of(layer, reader)
            channels = INTERMEDIATE if reader == "mlp.down_proj" else HIDDEN
            calibration = TOKENS_PER_CHANNEL * channels
            inputs = make_inputs(random, regime, calibration + HELD_OUT, channels)
            sizes = inputs[:calibration].square().mean(0).sqrt()
            matrix = make_weights(random, regime, sum(parts.values()), sizes)
            for part, values in zip(parts, matrix.split(list(parts.values()))):
                weights[f"{at}{part}.weight"] = values.contiguous()
            if reader in NORMS:
                weights[f"{at}{NORMS[reader]}.weight"] = sizes
            for tokens in inputs[:calibration].split(2048):
                recorder.see(at + reader, tokens)
            held_out[layer, reader] = inputs[calibration:].clone()
    save_file({name: value.to(torch.bfloat16) for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return held_out
