"""Checkpoints without data: a header, and a hole where the weights would be. What plans are made from."""
import json
import struct

BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}


def write_headers(folder, config, shapes, **dtypes):
    """shapes: name -> shape. dtypes: name -> type, where it is not BF16."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape in shapes.items():
        dtype = dtypes.get(name, "BF16")
        size = BYTES[dtype]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with open(path, "r+b") as file:
        file.truncate(8 + len(text) + end)
    return folder


def attention(layer, hidden, heads, kv_heads, head):
    return {f"{layer}.self_attn.q_proj.weight": (heads * head, hidden), f"{layer}.self_attn.k_proj.weight": (kv_heads * head, hidden),
            f"{layer}.self_attn.v_proj.weight": (kv_heads * head, hidden), f"{layer}.self_attn.o_proj.weight": (hidden, heads * head)}


def mlp(module, hidden, inner):
    return {f"{module}.gate_proj.weight": (inner, hidden), f"{module}.up_proj.weight": (inner, hidden),
            f"{module}.down_proj.weight": (hidden, inner)}


def norms(layer, hidden, *more):
    return {f"{layer}.{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm", *more)}


def ends(hidden, vocabulary):
    return {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}
