#!/usr/bin/env python3
"""Makes a DFlash2 drafter to try quantmill on: random weights shaped like a real one's, with activation statistics.

Writes FOLDER/drafter (a checkpoint folder) and FOLDER/calib.tp0.pt, FOLDER/calib.tp1.pt ... (statistics of as many
tensor-parallel ranks as --parts, in torch.save's zip form). Needs numpy alone; memory stays below 300 MB at any size.
The same arguments give the same bytes.
"""

import argparse
import json
import pathlib
import struct
import zipfile
import zlib

import numpy as np

HEAD_DIM = 128
CONV_GROUP = 16
CONV_TAPS = 2
SELECTOR_RANK = 256
TARGET_LAYERS = [5, 19, 33, 47, 61]
CHUNK_ELEMENTS = 1 << 20


class Shape:
    """The sizes of a drafter, in the proportions of released ones (hidden 5120, intermediate 17408, heads 32 on 8)."""

    def __init__(self, hidden, layers, vocabulary):
        self.hidden = hidden
        self.layers = layers
        self.vocabulary = vocabulary
        self.kv_heads = max(1, round(hidden * 0.2 / HEAD_DIM))
        self.heads = 4 * self.kv_heads
        self.intermediate = round(3.4 * hidden / 256) * 256

    def tensors(self):
        """Name -> shape, in the order of names, as released files have them."""
        hidden, heads, kv_heads = self.hidden, self.heads * HEAD_DIM, self.kv_heads * HEAD_DIM
        shapes = {
            "candidate_selector.hidden_projection.weight": [SELECTOR_RANK, hidden],
            "candidate_selector.predecessor_codebook": [self.vocabulary, SELECTOR_RANK],
            "candidate_selector.successor_codebook": [self.vocabulary, SELECTOR_RANK],
            "fc.weight": [hidden, len(TARGET_LAYERS) * hidden],
            "hidden_norm.weight": [hidden],
            "norm.weight": [hidden],
        }
        for layer in range(self.layers):
            prefix = f"layers.{layer}."
            for conv in ("attention_conv", "mlp_conv"):
                shapes[f"{prefix}{conv}.base_kernel"] = [2, CONV_TAPS, hidden]
                shapes[f"{prefix}{conv}.kernel_projection.weight"] = [2 * CONV_TAPS * hidden // CONV_GROUP, hidden]
            shapes[prefix + "input_layernorm.weight"] = [hidden]
            shapes[prefix + "post_attention_layernorm.weight"] = [hidden]
            shapes[prefix + "self_attn.q_proj.weight"] = [heads, hidden]
            shapes[prefix + "self_attn.k_proj.weight"] = [kv_heads, hidden]
            shapes[prefix + "self_attn.v_proj.weight"] = [kv_heads, hidden]
            shapes[prefix + "self_attn.o_proj.weight"] = [hidden, heads]
            shapes[prefix + "self_attn.q_norm.weight"] = [HEAD_DIM]
            shapes[prefix + "self_attn.k_norm.weight"] = [HEAD_DIM]
            shapes[prefix + "mlp.gate_proj.weight"] = [self.intermediate, hidden]
            shapes[prefix + "mlp.up_proj.weight"] = [self.intermediate, hidden]
            shapes[prefix + "mlp.down_proj.weight"] = [hidden, self.intermediate]
        return dict(sorted(shapes.items()))

    def size_bytes(self):
        return sum(2 * int(np.prod(shape)) for shape in self.tensors().values())


def choose_shape(gigabytes, layers, vocabulary):
    """The drafter whose size is nearest to `gigabytes`."""
    candidates = [Shape(hidden, layers, vocabulary) for hidden in range(256, 16385, 128)]
    return min(candidates, key=lambda shape: abs(shape.size_bytes() - gigabytes * 1e9))


def to_bf16(values):
    """float32 -> BF16 bits, rounded to nearest, ties to even. Changes its argument."""
    bits = values.view(np.uint32)
    bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits >> np.uint32(16)).astype("<u2")


class Weights:
    """Tensors by name. Each has its own generator, so none depends on the order in which they are asked for."""

    def __init__(self, shape, seed):
        self.shape = shape
        self.seed = seed
        # One pool of normal numbers, read from a random place per chunk: drawing each afresh takes longer than writing.
        self.pool = np.random.default_rng(seed).standard_normal(CHUNK_ELEMENTS * 16, dtype=np.float32)

    def generator(self, name):
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def norm(self, name, size):
        """The weight of a normalisation: a few channels are 8 to 20 times the others, as in real models."""
        generator = self.generator(name)
        weight = np.exp(0.4 * generator.standard_normal(size))
        if size > HEAD_DIM and name != "norm.weight":
            outliers = generator.choice(size, max(3, size // 200), replace=False)
            weight[outliers] *= generator.uniform(8, 20, len(outliers))
        return weight.astype(np.float32)

    def row_factors(self, name, rows):
        """How loud each output of a linear is. A few rows of up_proj are 8 times the others."""
        generator = self.generator(name + ":rows")
        factors = np.exp(0.3 * generator.standard_normal(rows))
        if name.endswith("up_proj.weight"):
            factors[generator.choice(rows, max(3, rows // 50), replace=False)] *= 8
        return factors.astype(np.float32)

    def column_factors(self, name, columns):
        generator = self.generator(name + ":columns")
        factors = np.exp(0.2 * generator.standard_normal(columns))
        factors[generator.choice(columns, max(2, columns // 300), replace=False)] *= 6
        return factors.astype(np.float32)

    def chunks(self, name, shape):
        """The tensor's BF16 bits, a few rows at a time."""
        if len(shape) == 1:
            yield to_bf16(self.norm(name, shape[0]))
        elif name.endswith("base_kernel"):
            kernel = 0.15 * self.generator(name).standard_normal(shape)
            kernel[:, 0] += 1
            yield to_bf16(kernel.astype(np.float32))
        else:
            yield from self.matrix_chunks(name, *shape)

    def matrix_chunks(self, name, rows, columns):
        generator = self.generator(name)
        row_factors = self.row_factors(name, rows)[:, None]
        column_factors = self.column_factors(name, columns)
        if name.endswith("codebook"):
            row_factors, column_factors = np.full((rows, 1), 0.5, np.float32), np.ones(columns, np.float32)
        elif name.endswith("kernel_projection.weight"):
            column_factors *= np.float32(0.1 / columns**0.5)
        else:
            column_factors *= np.float32(1 / columns**0.5)
        step = max(1, CHUNK_ELEMENTS // columns)
        for begin in range(0, rows, step):
            end = min(rows, begin + step)
            size = (end - begin) * columns
            start = int(generator.integers(len(self.pool) - size))
            values = self.pool[start:start + size].reshape(end - begin, columns) * column_factors
            values *= row_factors[begin:end]
            yield to_bf16(values)


def write_shard(path, names, shapes, weights, metadata):
    header, offset = dict(metadata), 0
    for name in names:
        size = 2 * int(np.prod(shapes[name]))
        header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            for chunk in weights.chunks(name, shapes[name]):
                file.write(chunk.data)


def write_weights(folder, shape, weights, num_shards):
    shapes = shape.tensors()
    if num_shards == 1:
        write_shard(folder / "model.safetensors", list(shapes), shapes, weights, {})
        return
    total, placed, weight_map = shape.size_bytes(), 0, {}
    shards = [[] for _ in range(num_shards)]
    for name, dimensions in shapes.items():
        shard = min(num_shards - 1, placed * num_shards // total)
        shards[shard].append(name)
        placed += 2 * int(np.prod(dimensions))
    shards = [names for names in shards if names]
    for number, names in enumerate(shards, 1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_shard(folder / file_name, names, shapes, weights, {"__metadata__": {"format": "pt"}})
        weight_map.update({name: file_name for name in names})
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def write_other_files(folder, shape):
    layers = shape.layers
    config = {
        "architectures": ["DFlash2DraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": shape.vocabulary - 4,
        "is_causal": False,
        "dflash_config": {
            "block_size": 8,
            "conv_group_size": CONV_GROUP,
            "conv_kernel_size": CONV_TAPS,
            "mask_token_id": shape.vocabulary - 3,
            "selector_rank": SELECTOR_RANK,
            "selector_top_k": 16,
            "target_layer_ids": TARGET_LAYERS,
        },
        "dtype": "bfloat16",
        "eos_token_id": shape.vocabulary - 1,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "layer_types": ["sliding_attention"] * layers,
        "max_position_embeddings": 262144,
        "max_window_layers": layers,
        "model_type": "qwen3",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": shape.kv_heads,
        "num_target_layers": 64,
        "pad_token_id": shape.vocabulary - 2,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000000.0, "rope_type": "default"},
        "sliding_window": 2048,
        "tie_word_embeddings": False,
        "transformers_version": "5.15.0",
        "use_cache": False,
        "use_sliding_window": True,
        "vocab_size": shape.vocabulary,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "README.md").write_text("A DFlash2 drafter of random weights, made by make_demo_drafter.py.\n")
    tokenizer = {"eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>", "model_max_length": 262144}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2) + "\n")


def recorded(generator, channel_scale, tokens):
    """What a recorder would have seen of an input whose channels have this mean magnitude."""
    absmean = channel_scale * np.exp(0.1 * generator.standard_normal(len(channel_scale)))
    spread = generator.uniform(1.5, 2.2, len(channel_scale))  # E[x^2] / E[|x|]^2; pi / 2 for a normal input
    absmax = absmean * generator.uniform(5, 12, len(channel_scale))
    vectors = {"absmean": absmean, "sqmean": spread * absmean**2, "absmax": absmax}
    return {**{key: values.astype("<f4") for key, values in vectors.items()}, "count": tokens}


def make_statistics(shape, weights):
    """Input name -> vectors: what norms and loud rows of the weights make of their inputs."""
    block_tokens, context_tokens = 20480, 65536
    generator = weights.generator("statistics")
    taps = np.exp(0.6 * generator.standard_normal(len(TARGET_LAYERS) * shape.hidden))
    taps[generator.choice(len(taps), 2 * len(TARGET_LAYERS), replace=False)] *= 50  # massive activations of the target
    statistics = {
        "fc": recorded(generator, taps, context_tokens),
        "ctx_kv": recorded(generator, 0.8 * weights.norm("hidden_norm.weight", shape.hidden), context_tokens),
    }
    for layer in range(shape.layers):
        prefix = f"layers.{layer}."
        attention = weights.norm(prefix + "input_layernorm.weight", shape.hidden)
        mlp = weights.norm(prefix + "post_attention_layernorm.weight", shape.hidden)
        values = weights.row_factors(prefix + "self_attn.v_proj.weight", shape.kv_heads * HEAD_DIM)
        heads = np.repeat(values.reshape(shape.kv_heads, HEAD_DIM), shape.heads // shape.kv_heads, axis=0).ravel()
        up = weights.row_factors(prefix + "mlp.up_proj.weight", shape.intermediate)
        for name, scale in (
            ("self_attn.qkv_proj", 0.8 * attention),
            ("self_attn.o_proj", 0.5 * heads),
            ("mlp.gate_up_proj", 0.8 * mlp),
            ("mlp.down_proj", 0.3 * up),
        ):
            statistics[prefix + name] = recorded(generator, scale, block_tokens)
    return statistics


def part_of(statistics, part, parts):
    """What one tensor-parallel rank records: its range of a row-parallel linear's input, all of the others."""
    result = {}
    for name, values in statistics.items():
        result[name] = dict(values)
        if name.endswith(("o_proj", "down_proj")):
            for key in ("absmean", "sqmean", "absmax"):
                result[name][key] = np.split(values[key], parts)[part]
    return result


class TorchPickle:
    """The pickle of a dict of dicts of float32 tensors and integers, with the opcodes and names that torch.save uses."""

    def __init__(self):
        self.storages = []

    def text(self, value):
        data = value.encode()
        return b"X" + struct.pack("<I", len(data)) + data

    def integer(self, value):
        return b"J" + struct.pack("<i", value)

    def tensor(self, values):
        """torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)"""
        key = str(len(self.storages))
        self.storages.append(values)
        count = self.integer(len(values))
        storage = b"(" + self.text("storage") + b"ctorch\nFloatStorage\n" + self.text(key) + self.text("cpu") + count + b"tQ"
        arguments = storage + self.integer(0) + count + b"\x85" + self.integer(1) + b"\x85" + b"\x89"
        return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"ccollections\nOrderedDict\n)RtR"

    def value(self, value):
        if isinstance(value, dict):
            items = b"".join(self.text(key) + self.value(item) for key, item in value.items())
            return b"}(" + items + b"u"
        return self.integer(value) if isinstance(value, int) else self.tensor(value)

    def dump(self, value):
        return b"\x80\x02" + self.value(value) + b"."


def write_torch_archive(path, values):
    pickle = TorchPickle()
    members = {"data.pkl": pickle.dump(values), "byteorder": b"little"}
    members.update({f"data/{key}": storage.tobytes() for key, storage in enumerate(pickle.storages)})
    members["version"] = b"3\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(f"{path.stem}/{name}", (1980, 1, 1, 0, 0, 0)), data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--gigabytes", type=float, default=0.3, help="size of the weights, about (default 0.3)")
    parser.add_argument("--layers", type=int, default=5, help="decoder layers (default 5)")
    parser.add_argument("--vocabulary", type=int, default=32768, help="rows of the selector's codebooks (default 32768)")
    parser.add_argument("--parts", type=int, default=2, help="tensor-parallel ranks that recorded (default 2)")
    parser.add_argument("--shards", type=int, default=1, help="files of weights (default 1, as released drafters have)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if min(arguments.layers, arguments.vocabulary - 4, arguments.parts, arguments.shards) < 1:
        parser.error("--layers, --parts and --shards must be at least 1, --vocabulary at least 5")

    shape = choose_shape(arguments.gigabytes, arguments.layers, arguments.vocabulary)
    if (shape.heads * HEAD_DIM) % arguments.parts or shape.intermediate % arguments.parts:
        parser.error(f"--parts {arguments.parts} does not divide {shape.heads} heads and {shape.intermediate} channels")
    weights = Weights(shape, arguments.seed)
    drafter = arguments.folder / "drafter"
    drafter.mkdir(parents=True, exist_ok=True)
    for old in [*drafter.glob("model*.safetensors*"), *arguments.folder.glob("calib.tp*.pt")]:
        old.unlink()
    write_weights(drafter, shape, weights, arguments.shards)
    write_other_files(drafter, shape)
    statistics = make_statistics(shape, weights)
    for part in range(arguments.parts):
        write_torch_archive(arguments.folder / f"calib.tp{part}.pt", part_of(statistics, part, arguments.parts))
    print(f"{drafter}: {shape.layers} layers, hidden {shape.hidden}, intermediate {shape.intermediate}, "
          f"{shape.heads} heads on {shape.kv_heads}, {shape.size_bytes() / 1e9:.3f} GB")
    print(f"{arguments.folder}/calib.tp0.pt{'' if arguments.parts == 1 else f' ... tp{arguments.parts - 1}.pt'}: "
          f"statistics of {len(statistics)} inputs")


if __name__ == "__main__":
    main()
