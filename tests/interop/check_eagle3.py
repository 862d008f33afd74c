"""Folding does not change an EAGLE-3 drafter as vLLM computes it. As check_folds.py, for what transformers lacks."""

import json
import os
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from torch import nn
from vllm.model_executor.layers.linear import LinearBase

import fold_controls
import folding
import vllm_drafter
from check_folds import row, verdict
from report import Report

WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"]) / "eagle3"
HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCABULARY, TAPS = 96, 160, 6, 2, 32, 96, 3
TARGET_LAYERS = 8
TOKENS = 24
CONFIG = dict(architectures=["LlamaForCausalLMEagle3"], model_type="llama", hidden_size=HIDDEN, intermediate_size=INNER,
              num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD, num_hidden_layers=1,
              vocab_size=VOCABULARY, draft_vocab_size=64, rms_norm_eps=1e-6, max_position_embeddings=512,
              rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, hidden_act="silu", bos_token_id=1,
              eos_token_id=2, tie_word_embeddings=False, dtype="float32")
# What differs between released drafters: names, where the residual stream starts, norms before fc, more layers, biases.
CASES = {
    "eagle3": {},
    "eagle3-residual": dict(norm_before_residual=True, attention_bias=True),
    "eagle3-normed": dict(num_hidden_layers=2, norm_before_fc=True),
    "eagle3-taps": dict(fc_norm=True, norm_output=True),
}


def shapes(config):
    """Name -> shape, as in released checkpoints."""
    found = {"embed_tokens.weight": (VOCABULARY, HIDDEN), "fc.weight": (HIDDEN, TAPS * HIDDEN),
             "norm.weight": (HIDDEN,), "lm_head.weight": (64, HIDDEN)}
    if config.get("norm_before_fc"):
        found["input_norm.weight"] = (TAPS * HIDDEN,)
    if config.get("fc_norm"):
        found |= {f"fc_norm.{tap}.weight": (HIDDEN,) for tap in range(TAPS)}
    for layer in range(config["num_hidden_layers"]):
        block = "midlayer." if config["num_hidden_layers"] == 1 else f"layers.{layer}."
        width = HIDDEN if layer else 2 * HIDDEN
        found |= {block + name: shape for name, shape in {
            "input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,),
            "self_attn.q_proj.weight": (HEADS * HEAD, width), "self_attn.k_proj.weight": (KV_HEADS * HEAD, width),
            "self_attn.v_proj.weight": (KV_HEADS * HEAD, width), "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
            "mlp.gate_proj.weight": (INNER, HIDDEN), "mlp.up_proj.weight": (INNER, HIDDEN),
            "mlp.down_proj.weight": (HIDDEN, INNER)}.items()}
        if layer == 0:
            found[block + "hidden_norm.weight"] = (HIDDEN,)
        if config.get("attention_bias"):
            weights = {p: found[f"{block}self_attn.{p}_proj.weight"] for p in "qkvo"}
            found |= {f"{block}self_attn.{p}_proj.bias": shape[:1] for p, shape in weights.items()}
    return found


def write(case):
    folder = WORK / case
    folder.mkdir(parents=True)
    config = CONFIG | CASES[case]
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(3)
    tensors = {"d2t": torch.arange(64) // 3, "t2d": torch.ones(VOCABULARY, dtype=torch.bool)}
    for name, shape in shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        neutral = 1.0 if "norm" in name else 0.0
        tensors[name] = neutral + 0.3 * noise if len(shape) == 1 else noise / shape[-1] ** 0.5
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


class CausalAttention(nn.Module):
    """Stands in for the paged attention of one sequence."""

    def __init__(self, attention):
        super().__init__()
        self.shape = attention.num_heads, attention.num_kv_heads, attention.head_dim
        self.scaling = attention.scaling

    def forward(self, query, key, value):
        heads, kv_heads, width = self.shape
        query = query.view(-1, heads, width)
        key, value = (part.view(-1, kv_heads, width).repeat_interleave(heads // kv_heads, dim=1)
                      for part in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) * self.scaling
        later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(query.shape[0], -1)


class Drafter:
    """vLLM's module with a checkpoint's weights, as a function of nothing: the inputs are always the same."""

    def __init__(self, folder):
        self.model, self.settings = vllm_drafter.load_drafter(folder, "float32", TARGET_LAYERS, "eagle3", 3)
        for module in self.model.modules():
            if isinstance(module, LinearBase):  # vLLM's own kernel packs the weights away, where no control finds them
                module.cpu_linear = nn.functional.linear
        for layer in self.model.model.layers:
            layer.self_attn.attn = CausalAttention(layer.self_attn)

    @torch.no_grad()
    def output(self):
        generator = torch.Generator().manual_seed(1)
        features = torch.randn(TOKENS, TAPS * HIDDEN, generator=generator)
        tokens = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
        with vllm_drafter.set_current_vllm_config(self.settings):
            hidden = self.model.combine_hidden_states(features)
            return torch.cat(self.model(tokens, torch.arange(TOKENS), hidden))

    def parts(self, name, tensor):
        """As fold_controls.parts: rows of fused projections, columns of those that read vectors side by side."""
        rows, columns = {"": slice(None)}, {"": slice(None)}
        if "qkv_proj" in name:
            query, key = HEADS * HEAD, (HEADS + KV_HEADS) * HEAD
            rows = {"q": slice(0, query), "k": slice(query, key), "v": slice(key, tensor.shape[0])}
        elif "gate_up_proj" in name:
            rows = fold_controls.halves(tensor.shape[0])
        if tensor.dim() == 1:
            return {f"{name} {row}": (index,) for row, index in rows.items()}
        if "qkv_proj" in name and tensor.shape[1] == 2 * HIDDEN:
            columns = {"embedding": slice(0, HIDDEN), "hidden": slice(HIDDEN, 2 * HIDDEN)}
        elif name.endswith("fc.weight"):
            columns = {f"tap {tap}": slice(tap * HIDDEN, (tap + 1) * HIDDEN) for tap in range(TAPS)}
        return {f"{name} {row} {column}": (rows[row], columns[column]) for row in rows for column in columns}


def check_case(report, case):
    source = write(case)
    _, groups = folding.plan(source)
    folded = folding.fold(source, groups)
    original, copy = Drafter(source), Drafter(folded)
    exact = Drafter(folding.fold(source, groups, "--fold-scales", "pow2"))
    wanted = original.output()
    f32 = fold_controls.difference(copy.output(), wanted)
    pow2 = fold_controls.difference(exact.output(), wanted)
    before = original.model.state_dict()
    found = fold_controls.put_back(before, copy.model.state_dict(), copy.parts,
                                   lambda: fold_controls.difference(copy.output(), wanted))
    num_tensors = len(shapes(CONFIG | CASES[case])) + 2
    report.check(row(case, copy.model, "eagle3", num_tensors, groups, f32, pow2, found),
                 verdict(f32, pow2, True, found, folding.unexpected_changes(source, folded, groups)))


if __name__ == "__main__":
    shutil.rmtree(WORK, ignore_errors=True)
    report = Report()
    for case in CASES:
        report.section(case, check_case, case)
    report.close()
