"""Values and codes that others lost on the way from one checkpoint to the next. See README.md."""
import json
import sys
import unittest

import numpy as np

from coded_models import CodedModel
from coded_weights import fp8_block, plain, to_bf16, to_f32
from jobs import ROOT, PreparedTest, read_folder

sys.path.insert(0, str(ROOT / "tests" / "job"))
from any_model import EXPERTS, LAYERS, Model, save, save_statistics  # noqa: E402

ZEROS = ("model.layers.0.self_attn.v_proj.weight", "model.layers.1.mlp.experts.2.up_proj.weight", "model.layers.1.mlp.experts.0.down_proj.weight")
NAN_CODES = {"F8_E4M3": (0x7F, 0xFF), "F8_E8M0": (0xFF,)}
NEAREST = ("--scaling", "none", "--scale-rule", "even")


class Numbers(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.model = Model()
        for name in ZEROS:
            dtype, bits = cls.model.tensors[name]
            cls.model.tensors[name] = (dtype, np.zeros_like(bits))
        cls.source = save(self.folder / "model", cls.model.tensors)
        cls.stats = save_statistics(self.folder / "calib")

    def test_a_matrix_of_zeros_comes_out_as_zeros_in_every_scheme(self):
        for scheme in ("mxfp4", "mxfp8", "nvfp4", "fp8-tensor", "fp8-block", "int8", "int4-asym-g32"):
            out = self.quantize("--scheme", scheme, *NEAREST, source=self.source, stats=None)
            for name, (dtype, values) in read_folder(out).items():
                self.assertFalse(np.isin(values, NAN_CODES.get(dtype, ())).any(), f"{scheme}: {name} has codes that are no number")
                if name.endswith(("scale", "scale_inv", "scale_2")) and dtype in ("F32", "BF16"):
                    numbers = values if dtype == "F32" else to_f32(values)
                    self.assertTrue((np.isfinite(numbers) & (numbers > 0)).all(), f"{scheme}: {name}")
            back = read_folder(self.quantize("--layout", "plain", "--scheme", "f32", *NEAREST, source=out, stats=None))
            for name in ZEROS:
                self.assertFalse(back[name][1].any(), f"{scheme}: {name}")

    def test_a_fold_does_not_make_its_producer_harder_to_round(self):
        """up_proj's rows are divided for down_proj; gate_proj has the same columns, and no row of it is."""
        out = self.quantize("--scaling", "awq-grid", "--scale-rule", "even", "--objective", "w4a16", source=self.source, stats=self.stats)
        errors = {t["name"]: t["relative_error"] for t in json.loads((out / "quantmill_manifest.json").read_text())["tensors"]}
        for name in [name for name in errors if name.endswith("up_proj.weight") and name not in ZEROS]:
            self.assertLess(errors[name], 1.1 * errors[name.replace("up_proj", "gate_proj")], name)

    def test_what_is_excluded_of_an_fp8_checkpoint_is_widened_with_its_scales(self):
        model = CodedModel("fp8-block")
        random = np.random.default_rng(3)
        for name, shape in {"self_attn.q_proj": (256, 256), "self_attn.k_proj": (128, 256), "self_attn.v_proj": (128, 256),
                            "self_attn.o_proj": (256, 256), "mlp.gate_proj": (384, 256), "mlp.up_proj": (384, 256), "mlp.down_proj": (256, 384)}.items():
            model.linear("mtp.layers.0." + name, *shape, make=fp8_block)
        model.linear("mtp.fc", 256, 512, make=lambda _, rows, cols: plain(random, rows, cols))
        source = model.save(self.folder / "fp8")
        out = read_folder(self.quantize("--keep", "*o_proj", *NEAREST, source=source, stats=None))
        names = [name for name in model.values if name.startswith("mtp.") or name.endswith("o_proj.weight")]
        self.assertEqual(len(names), 8 + 2)
        for name in names:
            np.testing.assert_array_equal(out[name][1], to_bf16(model.values[name]), name)
            self.assertEqual(out[name][0], "BF16")
        self.assertEqual([name for name in out if name.endswith("_scale_inv")], [])

    def test_what_is_not_quantized_is_never_narrowed(self):
        tensors = dict(self.model.tensors)
        random = np.random.default_rng(4)
        for layer in range(LAYERS):
            at = f"model.layers.{layer}."
            for norm in ("q_norm", "k_norm"):
                tensors[f"{at}self_attn.{norm}.weight"] = ("F32", np.exp(random.standard_normal(32)).astype("<f4"))
            tensors[at + "mlp.gate.e_score_correction_bias"] = ("F32", (8 + 1e-4 * random.standard_normal(EXPERTS)).astype("<f4"))
            router = at + "mlp.gate.weight"
            tensors[router] = ("F32", random.standard_normal(tensors[router][1].shape).astype("<f4"))
        config = {"architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": EXPERTS, "first_k_dense_replace": 0, "n_shared_experts": 0}
        source = save(self.folder / "f32", tensors, **config)
        for options in (["--scheme", "mxfp4"], ["--scheme", "fp8-channel"]):
            out = read_folder(self.quantize(*options, *NEAREST, source=source, stats=None))
            for name, (dtype, values) in tensors.items():
                if dtype == "F32":
                    self.assertEqual(out[name][0], "F32", name)
                    np.testing.assert_array_equal(out[name][1], values, name)
        plain_ = read_folder(self.quantize("--layout", "plain", "--scheme", "bf16", *NEAREST, source=source, stats=None))
        name = "model.layers.0.mlp.gate.e_score_correction_bias"
        self.assertEqual(plain_[name][0], "F32")
        np.testing.assert_array_equal(plain_[name][1], tensors[name][1])

    def test_equal_values_under_two_names_stay_two_tensors(self):
        tensors = dict(self.model.tensors)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        tensors["model.layers.1.input_layernorm.weight"] = tensors["model.layers.0.input_layernorm.weight"]
        out = read_folder(self.quantize(*NEAREST, source=save(self.folder / "same", tensors), stats=None))
        for name in ("lm_head.weight", "model.embed_tokens.weight", "model.layers.1.input_layernorm.weight"):
            np.testing.assert_array_equal(out[name][1], tensors[name][1], name)


class Outputs(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.model = CodedModel("fp8-block")
        cls.source = cls.model.save(self.folder / "fp8", files=3)
        cls.out = self.quantize(*NEAREST, source=cls.source, stats=None)

    def header(self, path):
        raw = path.read_bytes()
        return json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])

    def test_the_index_is_that_of_what_was_written(self):
        index = json.loads((self.out / "model.safetensors.index.json").read_text())
        sizes, places = 0, {}
        for path in self.out.glob("*.safetensors"):
            header = self.header(path)
            self.assertEqual(header.pop("__metadata__"), {"format": "pt"})
            places |= {name: path.name for name in header}
            sizes += sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in header.values())
        self.assertEqual(index["weight_map"], places)
        self.assertEqual(index["metadata"]["total_size"], sizes)
        self.assertEqual([name for name in places if "scale_inv" in name], [])

    def test_files_and_names_are_the_sources(self):
        self.assertEqual({path.name for path in self.out.glob("*.safetensors")}, {path.name for path in self.source.glob("*.safetensors")})
        weights = {name.removesuffix("_scale") for name in read_folder(self.out)}
        self.assertEqual(weights, set(self.model.values))


class Unrecorded(PreparedTest):
    def prepare(self):
        pass

    def test_a_record_of_another_form_is_not_taken_for_what_lacks_one(self):
        """An engine that absorbs kv_b_proj into two matrices records inputs of these, which no checkpoint has."""
        from headers import ends, mlp, norms, write_headers
        layer = "model.layers.0"
        shapes = {**ends(64, 40), **norms(layer, 64), **mlp(f"{layer}.mlp", 64, 96), f"{layer}.self_attn.q_proj.weight": (4 * 32, 64),
                  f"{layer}.self_attn.kv_a_proj_with_mqa.weight": (32 + 8, 64), f"{layer}.self_attn.kv_a_layernorm.weight": (32,),
                  f"{layer}.self_attn.kv_b_proj.weight": (4 * (24 + 16), 32), f"{layer}.self_attn.o_proj.weight": (64, 4 * 16)}
        config = {"architectures": ["DeepseekV2ForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 40,
                  "intermediate_size": 96, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 16, "q_lora_rank": None,
                  "n_routed_experts": 0, "tie_word_embeddings": False}
        source = write_headers(self.folder / "model", config, shapes)
        from make_demo_drafter import write_torch_archive
        record = lambda size: {"absmean": np.ones(size, "<f4"), "count": 100}  # noqa: E731
        write_torch_archive(self.folder / "calib.tp0.pt", {
            "layers.0.self_attn.q_proj": record(64), "layers.0.mlp.gate_proj": record(64), "layers.0.mlp.down_proj": record(96),
            "layers.0.self_attn.k_b_proj": record(24)})
        result = self.run_program("plan", source, self.folder / "out", "--stats", self.folder / "calib", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        groups = {group["name"]: group["not_scaled"] for group in json.loads(result.stdout)["fold_groups"]}
        self.assertIsNone(groups["layers.0.qkv"])
        self.assertEqual(groups["layers.0.kv_b"], "no statistics were recorded for it")
        self.assertIn("layers.0.self_attn.k_b_proj", result.stderr + result.stdout)


if __name__ == "__main__":
    unittest.main()
