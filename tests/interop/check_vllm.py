"""vLLM's DFlash2 drafter reads what quantmill writes, and computes the same with folded weights as with the source's."""

import torch
from torch import nn

import drafters
import vllm_drafter
from report import Report

SOURCE_TENSORS = drafters.tensors(drafters.SOURCE)
CONTEXT_ROWS = (8, 60, 90)  # less than the sliding window, about it, more


def read_with_vllm(folder):
    model, _ = vllm_drafter.load(folder, "bfloat16")
    return vllm_drafter.values(model, {name: t.shape[0] for name, t in SOURCE_TENSORS.items()})


class BlockAttention(nn.Module):
    """Stands in for the paged attention: keeps the context's keys and values, attends from one block to both."""

    def __init__(self, attention):
        super().__init__()
        self.heads, self.kv_heads = attention.num_heads, attention.num_kv_heads
        self.width, self.scaling = attention.head_dim, attention.scaling
        self.window = attention.sliding_window
        self.impl, self.kv_cache = self, None

    def do_kv_cache_update(self, layer, keys, values, cache, slots):
        self.context = keys.clone(), values.clone()

    def forward(self, query, key, value):
        rows, context = query.shape[0], self.context[0].shape[0]
        query = query.view(rows, self.heads, self.width)
        repeat = self.heads // self.kv_heads
        key, value = (torch.cat([old, new.view(rows, self.kv_heads, self.width)])
                      .repeat_interleave(repeat, dim=1)
                      for old, new in zip(self.context, (key, value)))
        scores = torch.einsum("qhd,khd->hqk", query, key) * self.scaling
        if self.window is not None:
            distance = (torch.arange(context, context + rows)[:, None]
                        - torch.arange(context + rows)).abs()
            scores = scores.masked_fill(distance >= self.window, float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(rows, -1)


@torch.no_grad()
def hidden_states(folder):
    """Final hidden states of fixed random inputs, float32: vLLM's modules with the folder's weights."""
    model, settings = vllm_drafter.load(folder, "float32")
    vllm_drafter.make_ready(model, settings)
    drafter = model.model
    for layer in drafter.layers:
        layer.self_attn.attn = BlockAttention(layer.self_attn)
    drafter._attn_layers = [layer.self_attn.attn for layer in drafter.layers]
    block, width = drafter.layers[0].attention_conv.block_size, drafter.config.hidden_size
    results = []
    with vllm_drafter.set_current_vllm_config(settings):
        for rows in CONTEXT_ROWS:
            generator = torch.Generator().manual_seed(rows)
            features = torch.randn(rows, drafter.fc.input_size, generator=generator)
            embeddings = torch.randn(block, width, generator=generator)
            positions = torch.arange(rows + block)
            drafter.precompute_and_store_context_kv(drafter.fc(features), positions[:rows],
                                                    positions[:rows])
            results.append(drafter(None, positions[rows:], embeddings))
    return torch.cat(results).double()


def check_function(report):
    source = hidden_states(drafters.SOURCE)

    def check(folder_name, what, is_right):
        folder = drafters.WORK / folder_name
        folded = drafters.tensors(folder)
        moved = [name for name, tensor in SOURCE_TENSORS.items()
                 if not torch.equal(tensor.float(), folded[name].float())]
        change = ((hidden_states(folder) - source).norm() / source.norm()).item()
        report.check(f"{folder_name}: vLLM computes {what}, relative change {change:.1e}, "
                     f"{len(moved)} tensors folded",
                     None if moved and is_right(change) else "not so")

    # float32 rounds by 2^-24 relative; some thousand roundings in a row stay well below the bound.
    check("plain-f32", "the same", lambda change: change <= 1e-5)
    # Powers of two move through norms and matrices without any rounding, in BF16 too.
    check("plain-bf16-pow2", "exactly the same", lambda change: change == 0)
    # A scale per layer is not undone where k and v read hidden_norm: the measure has to see that.
    check("plain-f32-seed", "something else", lambda change: change >= 0.1)


if __name__ == "__main__":
    report = Report()
    report.section("vLLM", drafters.check_reader, "vLLM", read_with_vllm)
    report.section("vLLM's function", check_function)
    report.close()
