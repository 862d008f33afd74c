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


def fold(stored, is_legal):
    """Random powers of two moved from norms into their readers, in place and exactly. A legal fold uses one set for all
    layers and hidden_norm, since k and v read both norms; the illegal one has a set per layer, and hidden_norm stays."""
    width = stored["hidden_norm.weight"].shape[0]
    layers = len([name for name in stored if name.endswith("input_layernorm.weight")])
    generator = torch.Generator().manual_seed(1)
    scales = [torch.exp2(torch.randint(-1, 2, (width,), generator=generator))
              for _ in range(layers)]
    readers = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
               "attention_conv.kernel_projection")
    for index in range(layers):
        scale = scales[0 if is_legal else index]
        stored[f"layers.{index}.input_layernorm.weight"] /= scale
        for reader in readers:
            stored[f"layers.{index}.{reader}.weight"] *= scale
    if is_legal:
        stored["hidden_norm.weight"] /= scales[0]


def check_function(report):
    source = hidden_states(drafters.SOURCE)

    def change(folder):
        return ((hidden_states(folder) - source).norm() / source.norm()).item()

    # float32 carries 2^-24 relative error per operation; a few thousand of them stay well below this bound.
    bound = 1e-5
    folded = change(drafters.WORK / "plain-f32")
    report.check(f"vLLM computes the same with folded float32 weights: relative change {folded:.1e}",
                 None if folded <= bound else f"bound {bound}")
    # That bound means something: the same measure on folds whose effect is known.
    legal = change(drafters.write_copy(drafters.SOURCE, "legal-fold", lambda t: fold(t, True)))
    report.check(f"vLLM computes the same after a legal fold made by the test: {legal:.1e}",
                 None if legal == 0 else "powers of two change no bit")
    illegal = change(drafters.write_copy(drafters.SOURCE, "per-layer-fold",
                                         lambda t: fold(t, False)))
    report.check(f"vLLM computes something else after a fold per layer: {illegal:.2f}",
                 None if illegal >= 0.1 else "the measure does not see it")


if __name__ == "__main__":
    report = Report()
    report.section("vLLM", drafters.check_reader, "vLLM", read_with_vllm)
    report.section("vLLM's function", check_function)
    report.close()
