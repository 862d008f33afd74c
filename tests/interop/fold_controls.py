"""Which parts of a model a fold has changed, and what happens if one of them is as it was."""

import torch

# Stacked experts whose gate and up come in turns, not one after the other; and those that are stored as [in, out].
INTERLEAVED = ("GptOssForCausalLM",)
TRANSPOSED = ("GptOssForCausalLM", "Llama4ForCausalLM", "Llama4ForConditionalGeneration")


def outputs(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


def difference(found, wanted):
    """The largest difference of two outputs, relative to the largest output."""
    return float((found - wanted).abs().max() / wanted.abs().max())


def halves(size):
    return {"first half": slice(0, size // 2), "second half": slice(size // 2, size)}


def turns(size):
    return {"even": slice(0, size, 2), "odd": slice(1, size, 2)}


def row_parts(model, name, size):
    """Rows of a matrix that are linears of their own: what they are -> index."""
    config = model.config.get_text_config()
    if name.endswith("gate_up_proj.weight"):
        return halves(size)
    if name.endswith("self_attn.qkv_proj.weight"):
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        query, key = config.num_attention_heads * head, config.num_key_value_heads * head
        return {"q": slice(0, query), "k": slice(query, query + key), "v": slice(query + key, size)}
    if name.endswith("kv_b_proj.weight"):
        inside = torch.arange(size) % (config.qk_nope_head_dim + config.v_head_dim)
        return {"k": inside < config.qk_nope_head_dim, "v": inside >= config.qk_nope_head_dim}
    return {"": slice(None)}


def parts(model, name, tensor):
    """What must be right by itself in a parameter, one for each producer or reader in it: name -> index."""
    if tensor.dim() == 0:
        return {name: ()}
    if tensor.dim() == 3 and name.endswith("experts.gate_up_proj"):
        transposed = type(model).__name__ in TRANSPOSED
        split = turns if type(model).__name__ in INTERLEAVED else halves
        return {f"{name}[{expert}] {what}": (expert, slice(None), rows) if transposed else (expert, rows)
                for expert in range(tensor.shape[0])
                for what, rows in split(tensor.shape[2 if transposed else 1]).items()}
    if tensor.dim() == 3 and name.endswith("experts.down_proj"):
        return {f"{name}[{expert}]": expert for expert in range(tensor.shape[0])}
    if tensor.dim() == 2:
        return {f"{name} {what}".strip(): rows for what, rows in row_parts(model, name, tensor.shape[0]).items()}
    return {name: slice(None)}


def put_back(before, after, parts_of, change):
    """What `change()` measures while one part of a changed tensor in `after` is as in `before`: part -> change.
    parts_of: (name, tensor) -> {part: index}."""
    found = {}
    for name, tensor in after.items():
        for what, index in parts_of(name, tensor).items():
            kept = tensor[index].clone()
            if torch.equal(kept, before[name][index]):
                continue
            tensor[index] = before[name][index]
            found[what] = change()
            tensor[index] = kept
    return found


def controls(original, folded, tokens, wanted):
    """Of the folded model with the original's tensor in one place: part -> how far off its output is."""
    return put_back(original.state_dict(), folded.state_dict(),
                    lambda name, tensor: parts(folded, name, tensor),
                    lambda: difference(outputs(folded, tokens), wanted))


def part_errors(wanted, found):
    """Of each part in which two models differ: part -> norm of the difference by the norm of the wanted one."""
    before, errors = wanted.state_dict(), {}
    for name, tensor in found.state_dict().items():
        for what, index in parts(found, name, tensor).items():
            right = before[name][index]
            if not torch.equal(tensor[index], right):
                errors[what] = float((tensor[index] - right).norm() / right.norm())
    return errors
