"""quantmill diff: which weights differ, by how much; expected numbers are worked out here, with numpy."""
import json
import unittest

import numpy as np

from jobs import TINY, JobTest, copy_tiny, read_safetensors

NAME = "layers.0.mlp.down_proj.weight"


def to_f32(bits):
    return (bits.astype("<u4") << 16).view("<f4")


class Diff(JobTest):
    def diff(self, a, b, *args, status=1):
        result = self.run_program("diff", a, b, *args)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        return result.stdout

    def test_the_same_in_one_file_and_in_shards_is_no_difference(self):
        self.assertRegex(self.diff(TINY, TINY / "sharded", status=0), "^0 of 36 common tensors differ\n$")

    def test_a_changed_element_is_found_and_measured(self):
        def edit(tensors):
            tensors[NAME] = (tensors[NAME][0], tensors[NAME][1].copy())
            tensors[NAME][1][5, 7] = 0x4000  # 2.0

        other = copy_tiny(self.folder / "other", edit)
        before = to_f32(read_safetensors(TINY / "model.safetensors")[NAME][1]).astype(np.float64)
        largest = abs(before[5, 7] - 2)
        found = json.loads(self.diff(TINY, other, "--json"))
        differing = [tensor for tensor in found["tensors"] if tensor["differs"]]
        self.assertEqual([tensor["name"] for tensor in differing], [NAME])
        self.assertEqual(differing[0]["num_different"], 1)
        self.assertAlmostEqual(differing[0]["largest"], largest)
        self.assertAlmostEqual(differing[0]["relative"], largest / np.sqrt((before**2).sum()))
        text = self.diff(TINY, other)
        self.assertRegex(text, rf"\n  {NAME} .* BF16\n1 of 36 common tensors differ\n")

    def test_codes_are_compared_with_what_they_stand_for(self):
        """Unscaled and unfolded, each tensor differs by the error that the job's manifest states."""
        out = self.quantize("--scheme", "fp8-block", "--scaling", "none", stats=None)
        manifest = json.loads((out / "quantmill_manifest.json").read_text())
        errors = {tensor["name"]: tensor["relative_error"] for tensor in manifest["tensors"]}
        found = json.loads(self.diff(TINY, out, "--json"))
        self.assertEqual((found["only_a"], found["only_b"]), ([], []))
        self.assertEqual({tensor["name"] for tensor in found["tensors"] if tensor["differs"]}, set(errors))
        for tensor in found["tensors"]:
            if tensor["differs"]:
                self.assertAlmostEqual(tensor["relative"], errors[tensor["name"]], places=9)
                self.assertEqual((tensor["a"]["format"], tensor["b"]["format"]), ("BF16", "FP8"))

    def test_missing_tensors_shapes_and_numbers_that_are_none(self):
        def edit(tensors):
            del tensors["norm.weight"]
            tensors["more"] = ("F32", np.zeros((2, 3), "<f4"))
            tensors[NAME] = (tensors[NAME][0], tensors[NAME][1][:, :32])
            name = "layers.0.mlp.up_proj.weight"
            tensors[name] = (tensors[name][0], tensors[name][1].copy())
            tensors[name][1][0, 0] = 0x7FC0  # NaN

        other = copy_tiny(self.folder / "other", edit)
        text = self.diff(TINY, other)
        self.assertRegex(text, rf"only in {TINY}: 1\n  norm.weight\nonly in {other}: 1\n  more\n")
        self.assertRegex(text, rf"  {NAME} +shape \[96, \d+\] \| \[96, 32\]  BF16\n")
        self.assertRegex(text, r"layers.0.mlp.up_proj.weight +inf +inf ")
        self.assertEqual(self.diff(other, other, status=0), "0 of 36 common tensors differ\n")  # NaN is NaN

    def test_what_is_no_checkpoint_is_refused(self):
        self.assert_refused(self.run_program("diff", TINY, self.folder), 3, str(self.folder))


if __name__ == "__main__":
    unittest.main()
