"""`plan` takes the options of `quantize`, refuses what it would refuse, and does nothing."""
import json
import unittest

from jobs import CALIB, TINY, JobTest, read_folder


class Plan(JobTest):
    def plan(self, *args, source=TINY, out=None):
        return self.run_program("plan", source, out or self.folder / "out", *args)

    def test_it_says_what_quantize_then_does(self):
        for args in (["--stats", CALIB], ["--stats", CALIB, "--max-shard-size", "64K"], ["--scaling", "none"],
                     ["--stats", CALIB, "--layout", "plain", "--scheme", "f32", "--keep", "fc"]):
            result = self.plan(*args, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            plan = json.loads(result.stdout)
            out = self.quantize(*args, stats=None)
            self.assertEqual({file["name"]: file["bytes"] for file in plan["files"]},
                             {path.name: path.stat().st_size for path in out.glob("*.safetensors")})
            tensors = read_folder(out)
            for tensor in plan["tensors"]:
                stored = sum(tensors[name][1].nbytes for name in (tensor["name"], tensor["name"] + "_scale")
                             if name in tensors)
                self.assertEqual(stored, tensor["bytes"], tensor["name"])
            self.assertEqual(plan["source_bytes"], sum(values.nbytes for _, values in read_folder(TINY).values()))

    def test_it_changes_nothing(self):
        before = sorted(self.folder.iterdir())
        result = self.plan("--stats", CALIB, "--memory", "1G", "--threads", "3", "--overwrite", "--compat", "seed")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_the_text_names_groups_tensors_and_reasons(self):
        text = self.plan("--stats", CALIB, "--keep", "*.down_proj").stdout
        self.assertRegex(text, r"qkv +96 channels  hidden_norm\.weight and 2 more -> layers\.0\.self_attn\.k_proj\.weight")
        self.assertRegex(text, r"layers\.0\.down .*not scaled: none of its readers is quantized")
        self.assertRegex(text, r"fc\.weight +BF16  \[96, 288\] -> mxfp4 \(quantize\)")
        self.assertRegex(text, r"layers\.0\.mlp\.down_proj\.weight +BF16 .* -> BF16 \(copy\)")

    def test_it_refuses_what_quantize_would(self):
        self.assert_refused(self.plan(), 2, "--stats")
        self.assert_refused(self.plan("--stats", TINY / "hostile" / "wrong_length"), 3, "95", "96")
        self.assert_refused(self.plan("--stats", CALIB, "--memory", "1M"), 2, "--memory")
        self.assert_refused(self.plan("--stats", CALIB, out=self.folder / "no" / "out"), 4, "does not exist")
        (self.folder / "there").mkdir()
        self.assert_refused(self.plan("--stats", CALIB, out=self.folder / "there"), 2, "--overwrite")
        self.assert_refused(self.plan("--stats", CALIB, source=self.folder), 3, "safetensors")


if __name__ == "__main__":
    unittest.main()
