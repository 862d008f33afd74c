"""Folding keeps the model's function: the drafter's forward pass on folded weights, by the numpy reference in golden/fold."""
import json
import re
import subprocess
import unittest
from pathlib import Path

import numpy as np

from jobs import TINY, JobTest, read_safetensors

import dflash2_reference as reference  # in golden/fold, which jobs puts on the path


def inputs():
    rng = np.random.default_rng(40)
    return [(rng.standard_normal((rows, 288)), rng.standard_normal((8, 96))) for rows in (8, 20, 90)]


def outputs(model):
    return [reference.forward(model, context, block) for context, block in inputs()]


def load(folder):
    return reference.load(Path(folder) / "model.safetensors", Path(folder) / "config.json")


def largest_difference(model, wanted):
    return max(reference.relative_difference(got, want) for got, want in zip(outputs(model), wanted))


def read_scales(out):
    """Fold group -> s, read by HDF5's own h5dump."""
    def dump(name, *options):
        dumped = subprocess.run(["h5dump", "-y", "-w", "0", *options, "-d", f"/groups/{name}", out / "quantmill_scales.h5"],
                                capture_output=True, text=True, check=True).stdout
        return dumped[dumped.index("DATA {") + 6:]
    names = re.findall(r'"([^"\\]+)[^"]*"', dump("names"))
    offsets = [int(number) for number in re.findall(r"\d+", dump("s_offsets"))]
    values = np.array([float(x) for x in re.findall(r"[-+.0-9e]+", dump("s", "-m", "%.9g"))])
    scales = {name: values[begin:end] for name, begin, end in zip(names, offsets, offsets[1:], strict=False)}
    return scales


class Function(JobTest):
    @classmethod
    def setUpClass(cls):
        cls.model = load(TINY)
        cls.wanted = outputs(cls.model)

    def plain(self, *args):
        return self.quantize("--layout", "plain", *args, ranks=2)

    def test_the_chosen_scales_folded_in_double_keep_the_function(self):
        scales = read_scales(self.plain("--scheme", "f32"))
        self.assertEqual({name for name, s in scales.items() if (s != 1).any()},
                         {"qkv", *(f"layers.{i}.{name}" for i in (0, 1) for name in ("gate_up", "down", "o"))})
        folded = reference.fold_qkv_shared(self.model, scales["qkv"])
        folded = reference.fold_mlp(folded, [scales[f"layers.{i}.gate_up"] for i in (0, 1)])
        folded = reference.fold_down(folded, [scales[f"layers.{i}.down"] for i in (0, 1)])
        folded = reference.fold_o(folded, [scales[f"layers.{i}.o"] for i in (0, 1)])
        self.assertLess(largest_difference(folded, self.wanted), 1e-9)

    def test_f32_output_is_the_same_function_within_float_rounding(self):
        self.assertLess(largest_difference(load(self.plain("--scheme", "f32")), self.wanted), 2e-6)

    def test_bf16_output_is_the_same_function_within_bf16_rounding(self):
        difference = largest_difference(load(self.plain("--scheme", "bf16")), self.wanted)
        self.assertLess(difference, 0.02)
        self.assertGreater(difference, 1e-6)  # something was folded

    def test_powers_of_two_are_exact(self):
        for scheme in ("f32", "bf16"):
            folder = self.plain("--scheme", scheme, "--fold-scales", "pow2")
            changed = load(folder)
            self.assertTrue((changed["hidden_norm.weight"] != self.model["hidden_norm.weight"]).any())
            self.assertEqual(largest_difference(changed, self.wanted), 0.0)

    def test_the_scripts_fold_is_another_function(self):
        folder = self.plain("--scheme", "f32", "--compat", "seed")
        self.assertGreater(largest_difference(load(folder), self.wanted), 0.3)

    def test_without_scaling_nothing_changes(self):
        folder = self.quantize("--layout", "plain", "--scheme", "bf16", "--scaling", "none", stats=None)
        ours, source = (read_safetensors(f / "model.safetensors") for f in (folder, TINY))
        self.assertEqual(ours.keys(), source.keys())
        for name in ours:
            self.assertTrue((ours[name][1] == source[name][1]).all(), name)

    def test_verify_proves_it(self):
        for args in ([], ["--fold-scales", "pow2"], ["--layout", "plain", "--scheme", "bf16"]):
            out = self.quantize(*args)
            result = self.run_program("verify", out, "--against", TINY, "--function")
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            exact, stored = re.search(r"at most (\S+) in double, (\S+) as stored", result.stdout).groups()
            self.assertLess(float(exact), 1e-14)
            self.assertLess(float(stored), 1e-15 if "pow2" in args else 0.005)


if __name__ == "__main__":
    unittest.main()
