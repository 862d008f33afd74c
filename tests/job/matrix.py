"""Every source format in every target: sources are decoded exactly, and what is written is what the decoded weights give, or the
source's own codes. Prints the relative errors, and writes them to build/interop/format_sources.md of the source tree.
"""
import contextlib
import json
import os
import pathlib
import unittest

import numpy as np

import coded_makers as makers
import coded_weights
import schemes
from coded_weights import to_bf16, to_f32
from jobs import JobTest, read_folder, write_safetensors

HIDDEN, INNER, VOCAB, HEADS, HEAD, EXPERTS, EXPERT = 128, 256, 32, 2, 64, 2, 128
SHAPES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN, HIDDEN), "self_attn.v_proj": (HIDDEN, HIDDEN),
          "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
TARGETS = [(scheme, layout) for scheme, layouts in schemes.LAYOUTS.items() for layout in layouts]
TARGETS += [("w8a16-g128", "compressed-tensors"), *((f"int4-{kind}g128", layout) for kind in ("", "asym-")
                                                    for layout in ("compressed-tensors", "quark")),
            ("mxfp4", "gpt-oss"), ("bf16", "plain"), ("f16", "plain"), ("f32", "plain")]
# A model's layers are of one kind each; a maker's section of config.json says what names and shapes leave open.
GROUPS = {"compressed-tensors W8A16": 8, "compressed-tensors INT8 g32 asym": 8, "compressed-tensors INT4 g128": 4,
          "compressed-tensors INT4 g32": 4, "compressed-tensors INT4 g128 asym": 4, "compressed-tensors INT4 g32 asym": 4}
MODELS = (
    ("compressed-tensors", {
        "BF16": makers.bf16, "F16": makers.f16, "F32": makers.f32, "FP8 blocks, F32 scales": coded_weights.fp8_block,
        "FP8 blocks, BF16 scales": coded_weights.fp8_block_bf16, "FP8 blocks, E8M0 scales": makers.fp8_block_e8m0,
        "FP8 channels": coded_weights.fp8_channel, "FP8 tensor": makers.fp8_tensor, "compressed-tensors INT8": coded_weights.int8,
        "compressed-tensors W8A16": makers.w8a16, "compressed-tensors INT8 g32 asym": makers.int8_g32_asym,
        "compressed-tensors INT4 g128": makers.int4_g128, "compressed-tensors INT4 g32": makers.int4_g32,
        "compressed-tensors INT4 g128 asym": makers.int4_asym_g128, "compressed-tensors INT4 g32 asym": makers.int4_asym_g32,
        "compressed-tensors MXFP4": makers.mxfp4_packed, "MXFP8": makers.mxfp8, "compressed-tensors NVFP4": makers.nvfp4_packed,
        "ModelOpt NVFP4": makers.nvfp4}),
    ("quark", {"Quark MXFP4": makers.mxfp4, "Quark MXFP6 e2m3": makers.mxfp6_e2m3, "Quark MXFP6 e3m2": makers.mxfp6_e3m2,
               "Quark INT4 g32": makers.quark_int4, "Quark UINT4 g32": makers.quark_uint4}),
    ("awq", {"AutoAWQ INT4 g32": makers.autoawq}),
    ("gptq", {"GPTQ INT4 g32, reordered": makers.gptq}))
QUARK = {"Quark MXFP4": {"dtype": "fp4"}, "Quark MXFP6 e2m3": {"dtype": "fp6_e2m3"}, "Quark MXFP6 e3m2": {"dtype": "fp6_e3m2"},
         "Quark INT4 g32": {"dtype": "int4", "symmetric": True}, "Quark UINT4 g32": {"dtype": "uint4", "symmetric": False}}
# What is carried over: nothing is rounded.
CARRIED = {("FP8 blocks, F32 scales", "fp8-block"), ("FP8 blocks, BF16 scales", "fp8-block"), ("FP8 blocks, E8M0 scales", "fp8-block"),
           ("FP8 channels", "fp8-channel"), ("FP8 tensor", "fp8-tensor"), ("compressed-tensors INT8", "int8"),
           ("compressed-tensors W8A16", "w8a16"), ("compressed-tensors W8A16", "int8"), ("compressed-tensors INT4 g128", "int4-g128"),
           ("compressed-tensors INT4 g32", "int4-g32"), ("compressed-tensors INT4 g128 asym", "int4-asym-g128"),
           ("compressed-tensors INT4 g32 asym", "int4-asym-g32"), ("compressed-tensors MXFP4", "mxfp4"), ("MXFP8", "mxfp8"),
           ("compressed-tensors NVFP4", "nvfp4"), ("Quark MXFP4", "mxfp4"), ("Quark MXFP6 e2m3", "mxfp6-e2m3"),
           ("Quark MXFP6 e3m2", "mxfp6-e3m2"), ("Quark INT4 g32", "int4-g32"), ("Quark UINT4 g32", "int4-asym-g32"), ("gpt-oss MXFP4", "mxfp4")}
CARRIED_CODES = {("ModelOpt NVFP4", "nvfp4")}  # the scale of the whole weight is inverted
WHERE_A_ROW_IS_A_GROUP = {("compressed-tensors W8A16", "w8a16-g128")}
INVERSE = 2.0**-23
NO_EXPERTS = "experts that are one tensor"


def section(method, kinds):
    if method == "compressed-tensors":
        groups = {f"group_{layer}": {"targets": [rf"re:.*layers\.{layer}\..*"], "weights": {"num_bits": GROUPS[kind]}}
                  for layer, kind in enumerate(kinds) if kind in GROUPS}
        return {"quant_method": method, "config_groups": groups}
    if method == "quark":
        return {"quant_method": method, "export": {"pack_method": "reorder"},
                "layer_quant_config": {f"*layers.{layer}.*": {"weight": QUARK[kind]} for layer, kind in enumerate(kinds)}}
    return {"quant_method": method, "bits": 4, "group_size": 32} | ({"desc_act": True} if method == "gptq" else {"version": "gemm"})


class Source:
    """stored: tensors as the maker stores them; of_codes: names of those that are of weights in values, name -> F32; kinds: of each
    weight, its maker's name."""

    def __init__(self, config):
        self.random = np.random.default_rng(5)
        self.stored, self.values, self.kinds, self.of_codes = {}, {}, {}, set()
        self.config = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD,
                       "vocab_size": VOCAB, "intermediate_size": INNER, "tie_word_embeddings": False, **config}
        for name in ("model.embed_tokens", "lm_head"):
            self.plain(name + ".weight", VOCAB, HIDDEN)
        self.plain("model.norm.weight", HIDDEN)

    def plain(self, name, *shape):
        self.stored[name] = ("BF16", to_bf16(self.random.normal(1, .1, shape)))

    def put(self, kind, name, weight, tensors, values):
        parts = {name + suffix: value for suffix, value in tensors.items()}
        self.stored.update(parts)
        self.of_codes |= parts.keys()
        self.values[weight], self.kinds[weight] = values, kind

    def save(self, folder, decoded=False):
        folder.mkdir()
        tensors, config = self.stored, self.config
        if decoded:
            config = {key: value for key, value in config.items() if key != "quantization_config"}
            tensors = {name: value for name, value in self.stored.items() if name not in self.of_codes}
            tensors = tensors | {name: ("F32", self.as_released(name)) for name in self.values}
        (folder / "config.json").write_text(json.dumps(config))
        write_safetensors(folder / "model.safetensors", tensors)
        return folder

    def as_released(self, name):
        return np.ascontiguousarray(self.values[name])

    def written(self, name, layout):
        """[(name in the output, its values)]"""
        return [(name, self.values[name])]


class Llama(Source):
    def __init__(self, method, kinds):
        super().__init__({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": len(kinds),
                          "quantization_config": section(method, kinds)})
        for layer, (kind, make) in enumerate(kinds.items()):
            for name in ("input_layernorm", "post_attention_layernorm"):
                self.plain(f"model.layers.{layer}.{name}.weight", HIDDEN)
            for name, shape in SHAPES.items():
                at = f"model.layers.{layer}.{name}"
                self.put(kind, at, at + ".weight", *make(self.random, *shape))


class GptOss(Source):
    """The experts alone are quantized; attention is kept as it is."""

    def __init__(self):
        super().__init__({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 1, "num_local_experts": EXPERTS,
                          "num_experts_per_tok": 1, "intermediate_size": EXPERT, "quantization_config": {"quant_method": "mxfp4"}})
        at = "model.layers.0."
        for name in SHAPES:
            if "self_attn" in name:
                self.plain(f"{at}{name}.weight", *SHAPES[name])
        for name in ("input_layernorm", "post_attention_layernorm"):
            self.plain(f"{at}{name}.weight", HIDDEN)
        self.plain(at + "self_attn.sinks", HEADS)
        self.plain(at + "mlp.router.weight", EXPERTS, HIDDEN)
        self.plain(at + "mlp.router.bias", EXPERTS)
        for name, rows, cols in (("gate_up_proj", 2 * EXPERT, HIDDEN), ("down_proj", HIDDEN, EXPERT)):
            name = f"{at}mlp.experts.{name}"
            self.plain(name + "_bias", EXPERTS, rows)
            self.put("gpt-oss MXFP4", name, name, *makers.mxfp4_blocks(self.random, EXPERTS, rows, cols))

    def as_released(self, name):
        return np.ascontiguousarray(self.values[name].swapaxes(1, 2))

    def written(self, name, layout):
        if layout in ("gpt-oss", "plain"):
            return [(name, self.as_released(name))]
        stem, part = name.rsplit(".", 1)
        return [(f"{stem}.{expert}.{part}.weight", self.values[name][expert]) for expert in range(EXPERTS)]


def decoded(tensors, name):
    if name + "_blocks" in tensors:
        codes, scales = tensors[name + "_blocks"][1], tensors[name + "_scales"][1].astype(int)
        values = coded_weights.E2M1[coded_weights.nibbles(codes)] * (2.0 ** (scales - 127))[..., None]
        return values.reshape(*scales.shape[:2], -1).swapaxes(1, 2)
    dtype, values = tensors.get(name, ("", None))
    if dtype in ("BF16", "F16", "F32"):
        return to_f32(values) if dtype == "BF16" else values.astype("<f4")
    return schemes.decoded(tensors, name)


class Matrix(JobTest):
    def convert(self, source, scheme, layout, *options):
        """The output's tensors, or the message of the program that refuses."""
        out = source.with_name(f"{source.name}.{scheme}.{layout}")
        result = self.run_program("convert", source, out, "--scheme", scheme, "--layout", layout, *options)
        if result.returncode:
            self.assertIn(result.returncode, (2, 3), result.stderr)
            return result.stderr
        return schemes.read_target(out, scheme)

    def error_of(self, kind, source, got, layout):
        """The largest relative error among the weights of one kind."""
        errors = [0]
        for name in (name for name, other in source.kinds.items() if other == kind):
            for written, wanted in source.written(name, layout):
                values = decoded(got, written).astype("<f4").astype(float)
                errors.append(np.linalg.norm(values - wanted) / np.linalg.norm(wanted.astype(float)))
        return max(errors)

    def check_kind(self, kind, source, scheme, layout, got):
        """The cell of the table."""
        error = self.error_of(kind, source, got, layout)
        if (kind, scheme) in CARRIED or (scheme == "f32") or (kind.lower(), scheme) in (("bf16", "bf16"), ("f16", "f16")):
            self.assertEqual(error, 0, kind)
            return "carried" if (kind, scheme) in CARRIED else "exact"
        if (kind, scheme) in CARRIED_CODES:
            self.assertLess(error, INVERSE, kind)
            return "codes carried"
        self.assertLess(error, 0.5, kind)
        return f"{error:.4f}"

    def check_as_plain(self, source, scheme, got, plain):
        """What is not carried over is rounded as decoded weights are: the same bytes."""
        carried = {name for name, kind in source.kinds.items()
                   if (kind, scheme) in CARRIED | CARRIED_CODES | WHERE_A_ROW_IS_A_GROUP}
        carried = tuple(name.removesuffix(".weight") + "." for name in carried)
        for name, value in plain.items():
            if name != "scheme" and "_proj" in name and not name.startswith(carried or ("-",)):
                self.assertEqual(got[name][0], value[0], name)
                np.testing.assert_array_equal(got[name][1], value[1], name)

    def check_target(self, source, coded, plain, scheme, layout, is_first):
        """{kind: cell}"""
        kinds = dict.fromkeys(source.kinds.values())
        attention = ("--keep", "*self_attn*") if isinstance(source, GptOss) else ()
        got = self.convert(coded, scheme, layout, *attention)
        if isinstance(got, str):
            self.assertEqual(layout, "gpt-oss", got)
            self.assertNotIsInstance(source, GptOss, got)
            self.assertIn("one tensor", got)
            return dict.fromkeys(kinds, NO_EXPERTS)
        if is_first:
            self.check_as_plain(source, scheme, got, self.convert(plain, scheme, layout, *attention))
        return {kind: self.check_kind(kind, source, scheme, layout, got) for kind in kinds}

    def check_source(self, source, name, table):
        coded = source.save(self.folder / name)
        plain = source.save(self.folder / f"{name}-decoded", decoded=True)
        first = set()
        for scheme, layout in TARGETS:
            with self.subTest(source=name, scheme=scheme, layout=layout):
                cells = self.check_target(source, coded, plain, scheme, layout, scheme not in first)
                first.add(scheme)
                for kind, cell in cells.items():
                    table.setdefault(kind, {})[scheme, layout] = cell

    def test_matrix(self):
        table = {}
        for method, kinds in MODELS:
            self.check_source(Llama(method, kinds), method, table)
        self.check_source(GptOss(), "gpt-oss", table)
        self.assertEqual({len(row) for row in table.values()}, {len(TARGETS)})
        write(table)


def write(table):
    """Targets down, sources across; a layout of its own column."""
    kinds = list(table)
    lines = ["# Every source in every target", "",
             "The largest relative error (root mean square) of what is written against what the source stands for. carried: the source's codes",
             "and scales; codes carried: the same but for the scale of the whole weight, which is inverted; exact: nothing is lost.", ""]
    lines += ["| source | " + " | ".join(f"{scheme} {layout}" for scheme, layout in TARGETS) + " |", "|---" * (len(TARGETS) + 1) + "|"]
    lines += [f"| {kind} | " + " | ".join(table[kind][target] for target in TARGETS) + " |" for kind in kinds]
    text = "\n".join(lines) + "\n"
    folder = pathlib.Path(os.environ["QUANTMILL_SOURCE_DIR"]) / "build" / "interop"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "format_sources.md").write_text(text)
    with contextlib.suppress(BrokenPipeError):
        print(text)


if __name__ == "__main__":
    unittest.main()
