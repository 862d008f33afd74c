"""Recipes that give some tensors another scheme than the rest."""
import json
import unittest

import numpy as np

from any_model import Model, save, save_statistics, to_f32
from jobs import PreparedTest, hashes, read_folder
from schemes import ERRORS, decoded

ATTENTION = ("--scheme-for", "*.self_attn.*=fp8-channel")
# Attention in FP8, experts in MXFP4, and of the last layer the experts in another format.
RULES = (*ATTENTION, "--scheme-for", "*layers.1.mlp.experts.*=mxfp6-e2m3")
KEPT = ("--keep", "*.o_proj")


def scheme_of(name):
    if "o_proj" in name:
        return None
    if "self_attn" in name:
        return "fp8-channel"
    return "mxfp6-e2m3" if "layers.1." in name else "mxfp4"


class Mixed(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.tensors = Model().tensors
        cls.model = save(self.folder / "model", cls.tensors)
        cls.stats = save_statistics(self.folder / "calib")

    def unscaled_errors(self, out):
        groups = json.loads((out / "quantmill_manifest.json").read_text())["fold_groups"]
        return {group["name"]: group["errors"][0] for group in groups if group["errors"]}

    def section(self, out):
        return json.loads((out / "config.json").read_text())["quantization_config"]

    def test_each_tensor_has_its_scheme_and_reads_back(self):
        out = self.quantize(*RULES, *KEPT, "--scaling", "none", source=self.model, stats=None, ranks=2)
        plain = read_folder(self.quantize("--scheme", "f32", "--scaling", "none", source=out, stats=None))
        tensors = read_folder(out) | {"scheme": "mxfp6-e2m3"}
        for name, (_, source) in self.tensors.items():
            if not name.endswith("_proj.weight"):
                continue
            scheme = scheme_of(name)
            if scheme is None:
                self.assertEqual(tensors[name][1].tobytes(), source.tobytes(), name)
                continue
            values, wanted = decoded(tensors, name), to_f32(source).astype(float)
            error = np.linalg.norm(values - wanted) / np.linalg.norm(wanted)
            self.assertTrue(ERRORS[scheme] / 4 < error < ERRORS[scheme], f"{name}: {error}")
            np.testing.assert_array_equal(plain[name][1], values.astype("<f4"), name)
        result = self.run_program("verify", out, "--against", self.model)
        self.assertEqual(result.returncode, 0, result.stdout)
        listed = {item["name"]: item["stored_as"] for item in json.loads((out / "quantmill_manifest.json").read_text())["tensors"]}
        self.assertEqual(listed, {name: scheme_of(name) for name in listed})

    def test_scales_are_searched_in_each_readers_own_scheme(self):
        out = self.quantize(*RULES, source=self.model, stats=self.stats)
        self.assertEqual(hashes(self.quantize(*RULES, source=self.model, stats=self.stats, ranks=3)), hashes(out))
        result = self.run_program("verify", out, "--against", self.model, "--function")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertNotIn("layers.0.qkv", self.unscaled_errors(out))  # block by block, FP8 has nothing to search
        whole = ["--scaling", "awq-grid", "--objective", "w4a16"]
        groups = self.unscaled_errors(self.quantize(*RULES, *whole, source=self.model, stats=self.stats))
        in_mxfp4 = self.unscaled_errors(self.quantize(*whole, source=self.model, stats=self.stats))
        self.assertEqual(groups["layers.0.experts.0.down"], in_mxfp4["layers.0.experts.0.down"])
        self.assertLess(groups["layers.0.qkv"], 0.2 * in_mxfp4["layers.0.qkv"])  # FP8's error is a fifth, squared

    def test_quarks_section_names_the_others_modules(self):
        section = self.section(self.quantize(*RULES, "--scaling", "none", source=self.model, stats=None))
        self.assertEqual(section["global_quant_config"]["weight"]["dtype"], "fp4")
        dtypes = {pattern: layer["weight"]["dtype"] for pattern, layer in section["layer_quant_config"].items()}
        self.assertEqual(dtypes, {
            "*layers.*.self_attn.k_proj": "fp8_e4m3", "*layers.*.self_attn.o_proj": "fp8_e4m3",
            "*layers.*.self_attn.q_proj": "fp8_e4m3", "*layers.*.self_attn.qkv_proj": "fp8_e4m3",
            "*layers.*.self_attn.v_proj": "fp8_e4m3", "*layers.1.mlp.experts": "fp6_e2m3",
            "*layers.1.mlp.experts.*.down_proj": "fp6_e2m3", "*layers.1.mlp.experts.*.gate_proj": "fp6_e2m3",
            "*layers.1.mlp.experts.*.up_proj": "fp6_e2m3"})

    def test_compressed_tensors_has_a_group_for_each(self):
        out = self.quantize(*ATTENTION, *KEPT, "--layout", "compressed-tensors", "--scaling", "none", source=self.model, stats=None)
        section = self.section(out)
        self.assertEqual(section["format"], "mixed-precision")
        groups = section["config_groups"]
        self.assertEqual([groups[name]["format"] for name in groups], ["mxfp4-pack-quantized", "float-quantized"])
        self.assertEqual(groups["group_0"]["targets"], ["Linear"])
        self.assertEqual(groups["group_1"]["targets"],
                         [rf"re:(.*\.)?layers\.\d+\.self_attn\.{part}_proj$" for part in ("k", "q", "qkv", "v")])
        self.assertIn("model.layers.1.self_attn.o_proj", section["ignore"])
        result = self.run_program("verify", out, "--against", self.model)
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_packed_integers_of_two_widths_are_told_apart(self):
        for first, attention in (("int4-g32", "int8"), ("int8", "int4-g32"), ("w8a16", "int4-asym-g32")):
            with self.subTest(first=first, attention=attention):
                options = ("--scheme", first, "--scheme-for", f"*.self_attn.*={attention}", "--layout", "compressed-tensors")
                out = self.quantize(*options, "--scaling", "none", source=self.model, stats=None)
                plain = read_folder(self.quantize("--scheme", "f32", "--scaling", "none", source=out, stats=None))
                tensors = read_folder(out)
                for name in sorted(self.tensors):
                    if name.endswith("_proj.weight"):
                        np.testing.assert_array_equal(plain[name][1], decoded(tensors, name).astype("<f4"), name)

    def test_the_first_rule_that_matches_counts_and_the_plan_says_which(self):
        recipe = self.folder / "recipe.json"
        recipe.write_text(json.dumps({"schemes": [{"match": "*layers.0.*", "scheme": "keep"},
                                                  {"match": "*.self_attn.*", "scheme": "fp8-channel"}]}))
        result = self.run_program("plan", self.model, self.folder / "o", "--recipe", recipe, "--scaling", "none", "--json")
        plan = {item["name"]: (item["stored_as"], item["chosen_by"]) for item in json.loads(result.stdout)["tensors"]}
        self.assertEqual(plan["model.layers.0.self_attn.q_proj.weight"], ("BF16", "*layers.0.*"))
        self.assertEqual(plan["model.layers.1.self_attn.q_proj.weight"], ("fp8-channel", "*.self_attn.*"))
        self.assertEqual(plan["model.layers.1.mlp.experts.2.up_proj.weight"], ("mxfp4", ""))
        text = self.run_program("plan", self.model, self.folder / "o", "--recipe", recipe, "--scaling", "none").stdout
        self.assertRegex(text, r"layers\.1\.self_attn\.q_proj\.weight .* fp8-channel \(quantize, by \*\.self_attn\.\*\)")

    def test_what_servers_fuse_keeps_one_format(self):
        for rule, pair in (("*.self_attn.v_proj=fp8-channel", ("self_attn.q_proj.weight would be mxfp4", "self_attn.v_proj.weight fp8-channel", "self_attn.qkv_proj")),
                           ("*.experts.1.*=keep", ("experts.0.gate_proj.weight would be mxfp4", "experts.1.gate_proj.weight unquantized", "mlp.experts"))):
            result = self.run_program("plan", self.model, self.folder / "o", "--scheme-for", rule, "--scaling", "none")
            self.assert_refused(result, 2, *pair)

    def test_what_servers_could_not_split_is_told(self):
        def degrees(*options):
            result = self.run_program("plan", self.model, self.folder / "o", *options, "--scaling", "none", "--json")
            return json.loads(result.stdout)["tensor_parallel"]
        self.assertEqual(degrees(), [1])  # down_proj has 96 columns: three blocks of 32
        self.assertEqual(degrees("--keep", "*.experts.*"), [1, 2, 4])  # o_proj has 128
        self.assertEqual(degrees("--scheme", "fp8-block", "--keep", "*.experts.*", "--keep", "*.self_attn.[qkv]_proj"), [1])
        self.assertEqual(degrees("--scheme", "fp8-channel", "--keep", "*.experts.*"), [1, 2, 4, 8, 16, 32, 64])
        result = self.run_program("plan", self.model, self.folder / "o", "--scaling", "none", "--check-tp", "2")
        self.assert_refused(result, 3, "experts.0.down_proj.weight: 96 columns in 2 parts are not whole blocks of 32", r"possible are 1\.")
        result = self.run_program("plan", self.model, self.folder / "o", "--scaling", "none", "--keep", "*.experts.*", "--check-tp", "4")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_blocks_that_servers_would_cut_where_they_stack_weights_are_told(self):
        asked = (self.model, self.folder / "o", "--scheme", "fp8-block", "--scaling", "none", "--keep", "*.experts.*")
        plan = json.loads(self.run_program("plan", *asked, "--json").stdout)
        self.assertEqual(plan["tensor_parallel"], [])
        words = "self_attn.k_proj.weight: 64 rows, under which servers put another weight (layers.0.self_attn.qkv_proj), are not whole blocks of 128"
        self.assertEqual([words in notice for notice in plan["notices"]].count(True), 1, plan["notices"])
        result = self.run_program("plan", *asked, "--check-tp", "1")
        self.assert_refused(result, 3, r"64 rows, under which servers put another weight", "possible is none")
        plan = json.loads(self.run_program("plan", *asked, "--keep", "*.self_attn.[qkv]_proj", "--json").stdout)
        self.assertEqual([notice for notice in plan["notices"] if "under which" in notice], [])

    def test_rules_that_say_nothing_are_refused(self):
        for options, wanted in ((("--scheme-for", "*.self_attn.*"), "PATTERN=SCHEME"), (("--scheme-for", "*.attention.*=int8"), "int8"),
                                (("--scheme-for", "*.attention.*=keep"), "matches no tensor"),
                                (("--scheme-for", "*.self_attn.*=bf16"), "can't be mixed"),
                                (("--scheme", "bf16", *ATTENTION), "can't be mixed"),
                                (("--layout", "quark", "--scheme-for", "*.self_attn.*=int8"), 'layout "quark" takes the schemes'),
                                (("--compat", "seed", *ATTENTION), "fixes schemes")):
            result = self.run_program("plan", self.model, self.folder / "o", *options, *(() if "seed" in options else ("--scaling", "none")))
            self.assert_refused(result, 2, wanted)


if __name__ == "__main__":
    unittest.main()
