"""Jobs whose reports have something in every section: experts with few tokens, two schemes, kept tensors, statistics."""
import zlib

from jobs import PreparedTest, write_safetensors
from jobs import ROOT
import json
import sys

import numpy as np

sys.path.insert(0, str(ROOT / "scripts"))
from make_demo_drafter import write_torch_archive  # noqa: E402

LAYERS, HIDDEN, EXPERTS, EXPERT = 3, 64, 8, 96
FEW = "layers.1.mlp.experts.5.down_proj"  # the expert that 7 tokens reached
OPTIONS = ["--scheme-for", "*.self_attn.*=mxfp6-e2m3", "--keep", "*layers.0.self_attn.*",
           "--scaling", "awq-grid", "--scale-rule", "mse", "--objective", "w4a16"]


def to_bf16(values):
    return (np.asarray(values, "<f4").view("<u4") >> 16).astype("<u2")


def save_experts(folder):
    """A small mixture of experts in folder/experts, its statistics in folder/calib; returns both, and their mean squares by name."""
    random = np.random.default_rng(3)
    tensors, inputs = {}, {}

    def add(name, *shape):
        tensors[name + ".weight"] = ("BF16", to_bf16(random.normal(1 if len(shape) == 1 else 0, .05, shape)))

    add("model.embed_tokens", 40, HIDDEN)
    add("lm_head", 40, HIDDEN)
    add("model.norm", HIDDEN)
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        for norm, size in (("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN), ("self_attn.q_norm", 32), ("self_attn.k_norm", 32)):
            add(f"model.{at}{norm}", size)
        for name, rows in (("q", 128), ("k", 64), ("v", 64)):
            add(f"model.{at}self_attn.{name}_proj", rows, HIDDEN)
        add(f"model.{at}self_attn.o_proj", HIDDEN, 128)
        add(f"model.{at}mlp.gate", EXPERTS, HIDDEN)
        inputs |= {f"{at}self_attn.q_proj": HIDDEN, f"{at}self_attn.o_proj": 128, f"{at}mlp.gate": HIDDEN}
        for expert in range(EXPERTS):
            add(f"model.{at}mlp.experts.{expert}.gate_proj", EXPERT, HIDDEN)
            add(f"model.{at}mlp.experts.{expert}.up_proj", EXPERT, HIDDEN)
            add(f"model.{at}mlp.experts.{expert}.down_proj", HIDDEN, EXPERT)
            inputs[f"{at}mlp.experts.{expert}.down_proj"] = EXPERT
    records = {}
    for name, size in inputs.items():
        absmean = np.exp(random.standard_normal(size))
        if name == "layers.2.self_attn.o_proj":
            absmean[17] = 1000 * np.median(absmean)  # one channel that stands out
        count = 7 if name == FEW else 100 + zlib.crc32(name.encode()) % 4000 if "experts" in name else 4096
        records[name] = {"absmean": absmean.astype("<f4"), "sqmean": (2 * absmean**2).astype("<f4"), "count": count}
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 40, "intermediate_size": 256,
              "moe_intermediate_size": EXPERT, "num_experts": EXPERTS, "num_experts_per_tok": 2, "tie_word_embeddings": False}
    model = folder / "experts"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    write_safetensors(model / "model.safetensors", tensors)
    write_torch_archive(folder / "calib.tp0.pt", records)
    return model, folder / "calib", {name: record["sqmean"] for name, record in records.items()}


class ReportTest(PreparedTest):
    """self.model, self.stats; self.out and self.other: jobs of it in mixed formats and in FP8."""

    def prepare(self):
        cls = type(self)
        cls.model, cls.stats, cls.sqmean = save_experts(self.folder)
        cls.out = self.quantize(*OPTIONS, source=self.model, stats=self.stats, out=self.folder / "mixed", ranks=2)
        cls.other = self.quantize("--scheme", "fp8-channel", "--scaling", "none", source=self.model, stats=None, out=self.folder / "fp8")

    def report(self, *args):
        result = self.run_program("report", *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def report_json(self, *args):
        return json.loads(self.report(*args, "--json"))
