"""--compat seed reproduces the script quantize_dflash_mxfp4.py; golden/seed holds what it wrote."""
import json
import re
import unittest

from jobs import GOLDEN, TINY, JobTest, read_safetensors

SEED = GOLDEN / "seed" / "as-written"


class CompatSeed(JobTest):
    def differing_bytes(self, out):
        ours, script = read_safetensors(out / "model.safetensors"), read_safetensors(SEED / "model.safetensors")
        self.assertEqual(ours.keys(), script.keys())
        return sum(int((ours[name][1].view("u1") != script[name][1].view("u1")).sum()) for name in ours)

    def test_with_the_scripts_scales_every_byte_is_equal(self):
        out = self.quantize("--compat", "seed", "--compat-scales", SEED / "groups.json", stats=None, ranks=2)
        self.assertEqual((out / "model.safetensors").read_bytes(), (SEED / "model.safetensors").read_bytes())
        self.assertEqual((out / "config.json").read_bytes(), (SEED / "config.json").read_bytes())

    def test_with_its_own_search_the_same_alphas_and_bytes(self):
        # s is computed in double here and in float by torch; no byte of this checkpoint depends on it.
        out = self.quantize("--compat", "seed", ranks=3)
        self.assertEqual(self.differing_bytes(out), 0)
        groups = json.loads((SEED / "groups.json").read_text())
        manifest = json.loads((out / "quantmill_manifest.json").read_text())
        searched = {group["name"]: group for group in manifest["fold_groups"] if group["alpha"] is not None}
        self.assertEqual({name: group["alpha"] for name, group in searched.items()},
                         {name: group["alpha"] for name, group in groups.items()})
        for name, group in searched.items():
            for ours, wanted in zip(group["errors"], groups[name]["errors_f64"]):
                self.assertLess(abs(ours - wanted), 1e-6 * wanted, name)

    def test_report_and_warning(self):
        result = self.run_program("quantize", TINY, self.folder / "out", "--compat", "seed", "--compat-scales",
                                  SEED / "groups.json")
        self.assertEqual(result.stdout.replace(str(self.folder / "out"), "OUT_DIR"),
                         (SEED / "stdout.txt").read_text())
        warning = re.search(r"not the same function.*?by ([0-9.]+) \(relative\)", result.stderr)
        self.assertGreater(float(warning.group(1)), 0.1)

    def test_verify_finds_that_the_function_changed(self):
        out = self.quantize("--compat", "seed")
        result = self.run_program("verify", out, "--against", TINY, "--function")
        self.assertEqual(result.returncode, 13, result.stdout)
        self.assertRegex(result.stdout, r"WRONG function: layers\.\d\.self_attn\.[kv]_proj\.weight reads 'qkv'")
        self.assertNotRegex(result.stdout, "WRONG function: .*(q_proj|mlp|o_proj)")

    def test_options_that_it_fixes_are_refused(self):
        out = self.folder / "out"
        for args in (["--scale-rule", "even"], ["--fold-scales", "pow2"], ["--scaling", "none"]):
            result = self.run_program("quantize", TINY, out, "--stats", TINY / "calib" / "calib", "--compat", "seed", *args)
            self.assert_refused(result, 2, "--compat seed", args[0])
        self.assert_refused(self.run_program("quantize", TINY, out, "--compat-scales", SEED / "groups.json"),
                            2, "--compat-scales", "--compat seed")


class CompatScalesFile(JobTest):
    def test_wrong_files_are_refused(self):
        bad = self.folder / "scales.json"
        groups = json.loads((SEED / "groups.json").read_text())
        del groups["layers.1.down"]
        short = json.loads((SEED / "groups.json").read_text())
        short["layers.0.qkv"]["s_f32_hex"].pop()
        negative = json.loads((SEED / "groups.json").read_text())
        negative["layers.0.qkv"]["s_f32_hex"][0] = "bf800000"
        for content, word in ((json.dumps(groups), r"layers\.1\.down"), (json.dumps(short), r"layers\.0\.qkv.*95.*96"),
                              (json.dumps(negative), "bf800000"), ("[1", "scales")):
            bad.write_text(content)
            result = self.run_program("quantize", TINY, self.folder / "out", "--compat", "seed", "--compat-scales", bad)
            self.assert_refused(result, 3, r"scales\.json", word)
        self.assert_nothing_left(self.folder, "scales.json")


if __name__ == "__main__":
    unittest.main()
