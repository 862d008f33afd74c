"""Layers of multi-token prediction inside a checkpoint: copied bit for bit, quantized like the model's own on request."""
import json
import unittest

import numpy as np

from any_model import EXPERTS, HEAD, HEADS, HIDDEN, KV_HEADS, LAYERS, VOCAB, Model, recorded, save, to_f32
from imatrix import sums_of_model
from imatrix_files import imatrix_gguf
from jobs import PreparedTest, read_folder
from make_demo_drafter import write_torch_archive  # any_model has put its folder on the path

NEAREST = ("--scaling", "none", "--scale-rule", "even")
GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # e2m1
LINEARS = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.experts.{expert}.{part}_proj" for expert in range(EXPERTS)
                                                             for part in ("gate", "up", "down")]


def nearest_mxfp4(values):
    """(codes, exponents + 127): OCP MX with the block's maximum rounded to a power of two as Quark does, ties to even."""
    blocks = values.astype(np.float64).reshape(*values.shape[:-1], -1, 32)
    bits = np.abs(blocks).max(-1).astype("<f4").view("<u4")
    exponents = (((bits + 0x200000) >> 23) & 0xFF).astype(int) - 127 - 2
    scaled = np.abs(blocks) / 2.0 ** exponents[..., None]
    middle = (GRID[1:] + GRID[:-1]) / 2
    codes = np.searchsorted(middle, scaled, "left")
    codes += np.isin(scaled, middle) & (codes % 2 == 1)  # a tie goes to the even code
    codes = (codes + 8 * np.signbit(blocks)).reshape(values.shape).astype("u1")
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponents + 127).astype("u1")


class WithLayer(Model):
    """The model and one layer more, called `layer`, with what multi-token prediction has beside it."""

    def __init__(self, layer, beside):
        super().__init__()
        own = list(self.tensors)
        for name in own:
            if name.startswith("model.layers.1."):
                rest = name.removeprefix("model.layers.1.")
                shape = self.tensors[name][1].shape
                self.norm(f"{layer}.{rest}", shape[0]) if len(shape) == 1 else self.add(f"{layer}.{rest}", *shape)
        for name, shape in beside.items():
            self.norm(name, shape[0]) if len(shape) == 1 else self.add(name, *shape)

    def with_stacked_experts(self, layer):
        """The same tensors with the layer's experts as two."""
        tensors = {name: value for name, value in self.tensors.items() if not name.startswith(f"{layer}.mlp.experts.")}
        part = {what: np.stack([self.tensors[f"{layer}.mlp.experts.{expert}.{what}_proj.weight"][1] for expert in range(EXPERTS)])
                for what in ("gate", "up", "down")}
        tensors[f"{layer}.mlp.experts.gate_up_proj"] = ("BF16", np.concatenate([part["gate"], part["up"]], axis=1))
        tensors[f"{layer}.mlp.experts.down_proj"] = ("BF16", part["down"])
        return tensors


# As Qwen releases it, and as DeepSeek and GLM do: (the layer, what is beside it, keys of config.json).
QWEN = ("mtp.layers.0", {"mtp.fc.weight": (HIDDEN, 2 * HIDDEN), "mtp.norm.weight": (HIDDEN,),
                         "mtp.pre_fc_norm_hidden.weight": (HIDDEN,), "mtp.pre_fc_norm_embedding.weight": (HIDDEN,)}, {})
NUMBERED = (f"model.layers.{LAYERS}", {f"model.layers.{LAYERS}.{name}": shape for name, shape in {
    "eh_proj.weight": (HIDDEN, 2 * HIDDEN), "enorm.weight": (HIDDEN,), "hnorm.weight": (HIDDEN,),
    "embed_tokens.weight": (VOCAB, HIDDEN), "shared_head.norm.weight": (HIDDEN,),
    "shared_head.head.weight": (VOCAB, HIDDEN)}.items()}, {"num_nextn_predict_layers": 1})
LAYER = QWEN[0]


class MultiToken(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.models, cls.sources = {}, {}
        for kind, (layer, beside, config) in {"qwen": QWEN, "numbered": NUMBERED}.items():
            cls.models[kind] = WithLayer(layer, beside)
            cls.sources[kind] = save(self.folder / kind, cls.models[kind].tensors, **config)
        cls.stacked = save(self.folder / "stacked", cls.models["qwen"].with_stacked_experts(LAYER))
        records = recorded()
        write_torch_archive(self.folder / "calib.tp0.pt", records)
        cls.stats = self.folder / "calib"
        for name in [name for name in records if name.startswith("layers.1.")]:
            records[name.replace("layers.1.", LAYER + ".")] = {key: value if key == "count" else value[::-1].copy()
                                                               for key, value in records[name].items()}
        write_torch_archive(self.folder / "more.tp0.pt", records)
        cls.more_stats = self.folder / "more"

    def section(self, out):
        return json.loads((out / "config.json").read_text())["quantization_config"]

    def test_without_being_asked_for_every_bit_stays_and_the_config_says_so(self):
        for kind, pattern in (("qwen", "mtp.*"), ("numbered", f"layers.{LAYERS}.*")):
            layer, beside, _ = QWEN if kind == "qwen" else NUMBERED
            names = [name for name in self.models[kind].tensors if name.startswith(layer) or name in beside]
            for options in (["--stats", self.more_stats], [*NEAREST, "--layout", "plain", "--scheme", "f32"],
                            [*NEAREST, "--layout", "fp8", "--scheme", "fp8-block"]):
                out = self.quantize(*options, source=self.sources[kind], stats=None)
                tensors = read_folder(out)
                for name in names:
                    dtype, bits = self.models[kind].tensors[name]
                    self.assertEqual(tensors[name][0], dtype, name)
                    np.testing.assert_array_equal(tensors[name][1], bits, name)
                if "fp8" in options:
                    listed = self.section(out)["modules_to_not_convert"]
                    self.assertEqual([entry for entry in listed if "*" in entry], [])
                    missing = {name.removesuffix(".weight") for name in names if len(self.models[kind].tensors[name][1].shape) == 2} - set(listed)
                    self.assertEqual(missing, set())
                    self.assertIn(f"{layer}.self_attn.qkv_proj", listed)
                    self.assertIn(f"{layer}.mlp.experts", listed)
                elif "plain" not in options:
                    self.assertLessEqual({"*" + pattern, "re:.*" + pattern.replace(".", r"\.").replace("*", ".*")}, set(self.section(out)["exclude"]))

    def test_on_request_each_linear_is_rounded_to_nearest_and_the_rest_is_named(self):
        for kind in self.sources:
            layer, beside, _ = QWEN if kind == "qwen" else NUMBERED
            out = self.quantize("--include", "mtp", *NEAREST, source=self.sources[kind], stats=None)
            tensors = read_folder(out)
            for linear in LINEARS:
                name = f"{layer}.{linear}.weight"
                codes, scales = nearest_mxfp4(to_f32(self.models[kind].tensors[name][1]))
                np.testing.assert_array_equal(tensors[name][1], codes, name)
                np.testing.assert_array_equal(tensors[name + "_scale"][1], scales, name)
            quantized = {name for name in tensors if name.startswith((layer, "mtp.")) and name.endswith("_scale")}
            self.assertEqual(quantized, {f"{layer}.{linear}.weight_scale" for linear in LINEARS})
            kept = [name for name, shape in beside.items() if len(shape) == 2] + [f"{layer}.mlp.gate.weight"]
            self.assertEqual({entry for entry in self.section(out)["exclude"] if "mtp" in entry or f"layers.{LAYERS}" in entry},
                             {name.removesuffix(".weight") for name in kept})
            for name in kept:
                np.testing.assert_array_equal(tensors[name][1], self.models[kind].tensors[name][1], name)
            result = self.run_program("verify", out, "--against", self.sources[kind], "--function")
            self.assertEqual(result.returncode, 0, result.stdout)

    def test_statistics_of_the_model_alone_leave_it_unscaled(self):
        short = ("--scaling", "awq-grid", "--scale-rule", "even", "--objective", "w4a16", "--include", "mtp")
        out = self.quantize(*short, source=self.sources["qwen"], stats=self.stats)
        plain = self.quantize(*NEAREST, "--include", "mtp", source=self.sources["qwen"], stats=None)
        found, wanted = read_folder(out), read_folder(plain)
        for name in wanted:
            if name.startswith("mtp."):
                np.testing.assert_array_equal(found[name][1], wanted[name][1], name)
        changed = "model.layers.0.self_attn.q_proj.weight"
        self.assertFalse(np.array_equal(found[changed][1], wanted[changed][1]))

    def test_with_its_own_statistics_it_is_scaled_like_the_other_layers(self):
        options = ("--include", "mtp", "--scaling", "awq-grid", "--scale-rule", "even", "--objective", "w4a16")
        plan = json.loads(self.run_program("plan", self.sources["qwen"], self.folder / "o", *options, "--stats", self.more_stats, "--json").stdout)
        groups = {group["name"]: group for group in plan["fold_groups"] if group["name"].startswith(LAYER)}
        self.assertEqual(set(groups), {f"{LAYER}.{name}" for name in ("qkv", "gate_up", "o", "experts.0.down", "experts.1.down", "experts.2.down")})
        self.assertEqual({group["not_scaled"] for group in groups.values()}, {None})
        self.assertIn("mtp.layers.0.mlp.gate.weight", groups[f"{LAYER}.gate_up"]["readers"])  # the router reads the norm as well
        out = self.quantize(*options, source=self.sources["qwen"], stats=self.more_stats)
        tensors = read_folder(out)
        self.assertFalse(np.array_equal(tensors[f"{LAYER}.mlp.gate.weight"][1], self.models["qwen"].tensors[f"{LAYER}.mlp.gate.weight"][1]))
        np.testing.assert_array_equal(tensors["mtp.fc.weight"][1], self.models["qwen"].tensors["mtp.fc.weight"][1])
        result = self.run_program("verify", out, "--against", self.sources["qwen"], "--function")
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_experts_that_are_stored_as_one_come_out_as_if_they_were_apart(self):
        options = ("--include", "mtp", "--scaling", "awq-grid", "--scale-rule", "even", "--objective", "w4a16")
        wanted, found = (read_folder(self.quantize(*options, source=source, stats=self.more_stats, ranks=2))
                         for source in (self.sources["qwen"], self.stacked))
        self.assertEqual(found.keys(), wanted.keys())
        for name, (_, values) in wanted.items():
            np.testing.assert_array_equal(found[name][1], values, name)
        copied = read_folder(self.quantize(*NEAREST, source=self.stacked, stats=None))
        name = f"{LAYER}.mlp.experts.gate_up_proj"
        np.testing.assert_array_equal(copied[name][1], self.models["qwen"].with_stacked_experts(LAYER)[name][1])

    def test_what_servers_fuse_there_shares_its_scale_and_its_scheme(self):
        tensors = read_folder(self.quantize("--include", "mtp", "--scheme", "nvfp4", *NEAREST, source=self.sources["qwen"], stats=None))
        scale = lambda linear: tensors[f"{LAYER}.{linear}.weight_global_scale"][1].tobytes()  # noqa: E731
        self.assertEqual({scale(f"self_attn.{part}_proj") for part in "qkv"}, {scale("self_attn.q_proj")})
        self.assertEqual(scale("mlp.experts.1.gate_proj"), scale("mlp.experts.1.up_proj"))
        result = self.run_program("plan", self.sources["qwen"], self.folder / "o", "--include", "mtp", *NEAREST, "--keep", "mtp*up_proj")
        self.assert_refused(result, 2, r"servers fuse both into mtp.layers.0.mlp.experts")

    def test_scales_that_were_chosen_for_it_are_not_used_when_it_is_copied(self):
        options = ("--scaling", "awq-grid", "--scale-rule", "even", "--objective", "w4a16")
        first = self.quantize("--include", "mtp", *options, source=self.sources["qwen"], stats=self.more_stats)
        out = read_folder(self.quantize("--scales", first / "quantmill_scales.h5", source=self.sources["qwen"], stats=None))
        for name, (_, bits) in self.models["qwen"].tensors.items():
            if name.startswith("mtp."):
                np.testing.assert_array_equal(out[name][1], bits, name)

    def test_its_layer_0_is_not_taken_for_the_models(self):
        """Importance matrices of llama.cpp number the model's layers."""
        (self.folder / "imatrix.gguf").write_bytes(imatrix_gguf(sums_of_model()))
        for kind, source in self.sources.items():
            result = self.run_program("stats", "import", self.folder / "imatrix.gguf", "--model", source, "-o", self.folder / f"{kind}.h5")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("inputs are not in it", result.stdout)
            shown = self.run_program("stats", "show", self.folder / f"{kind}.h5").stdout
            self.assertIn("layers.1.self_attn", shown)
            self.assertNotIn("mtp", shown)
            self.assertNotIn(f"layers.{LAYERS}.", shown)

    def test_scales_of_the_cache_are_those_of_the_models_own_layers(self):
        records = recorded()
        for layer in range(LAYERS):
            records |= {f"layers.{layer}.self_attn.{kind}_cache": {"absmean": np.ones(KV_HEADS * HEAD, "<f4"), "absmax": np.full(KV_HEADS * HEAD, 3, "<f4"),
                                                                   "count": 4096} for kind in "kv"}
        write_torch_archive(self.folder / "cache.tp0.pt", records)
        for options in ([], ["--include", "mtp"]):
            out = read_folder(self.quantize("--scheme", "fp8-channel", "--kv-cache", "fp8", *NEAREST, *options, source=self.sources["qwen"],
                                            stats=self.folder / "cache"))
            self.assertEqual(len([name for name in out if name.endswith(("k_scale", "v_scale"))]), 2 * LAYERS)

    def test_a_layer_of_another_shape_is_only_copied(self):
        tensors = dict(self.models["qwen"].tensors)
        name = f"{LAYER}.self_attn.o_proj.weight"
        tensors[name] = ("BF16", tensors[name][1][:, :HEADS * HEAD // 2])
        out = self.quantize("--include", "mtp", *NEAREST, source=save(self.folder / "other", tensors), stats=None)
        self.assertIn(f"{LAYER}.self_attn.o_proj", self.section(out)["exclude"])
        np.testing.assert_array_equal(read_folder(out)[name][1], tensors[name][1])

    def test_a_part_that_the_model_lacks_is_refused(self):
        result = self.run_program("plan", self.sources["qwen"], self.folder / "o", *NEAREST, "--include", "vision")
        self.assert_refused(result, 2, "has no such part; it has mtp")


if __name__ == "__main__":
    unittest.main()
