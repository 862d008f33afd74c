"""How channel scales are chosen: candidates, objectives, block by block; never worse than none, by the same error."""
import json
import unittest

import h5py
import numpy as np

from any_model import HIDDEN, Model, save, save_statistics, to_f32
from jobs import PreparedTest, hashes, read_folder

BALANCE = ["--scaling", "balance"]
GRID = ["--scaling", "awq-grid", "--alphas", "0.5,1", "--betas", "0,0.5"]
BLOCKS = ["--scaling", "block-grid"]
BOTH = ["--objective", "w4a4"]


def groups_of(out):
    manifest = json.loads((out / "quantmill_manifest.json").read_text())
    return {group["name"]: group for group in manifest["fold_groups"] if not group["not_scaled"]}


class Scalings(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.tensors = Model().tensors
        cls.model = save(self.folder / "model", cls.tensors)
        cls.stats = save_statistics(self.folder / "calib")

    def run_with(self, *options, **how):
        return self.quantize("--scale-rule", "mse", *options, source=self.model, stats=self.stats, **how)

    def test_no_scaling_is_always_a_candidate_and_the_least_error_wins(self):
        for options, count in ((BALANCE, 2), (GRID, 5), (BALANCE + BOTH, 2), (GRID + BOTH, 5), (BLOCKS, 2), (BLOCKS + BOTH, 2)):
            with self.subTest(options=options):
                groups = groups_of(self.run_with(*options, ranks=2))
                self.assertGreater(len(groups), 5)
                for group in groups.values():
                    self.assertEqual((group["alphas"][0], group["betas"][0], len(group["errors"])), (0, 0, count))
                    if options[1] != "block-grid":
                        chosen = group["errors"].index(min(group["errors"]))
                        self.assertEqual((group["alpha"], group["beta"]), (group["alphas"][chosen], group["betas"][chosen]))
                    else:
                        self.assertLessEqual(group["errors"][1], group["errors"][0])

    def test_blocks_apart_are_at_least_as_good_as_the_best_of_a_group(self):
        quarters = "0,0.25,0.5,0.75,1"
        whole = groups_of(self.run_with("--alphas", quarters, "--betas", quarters))
        apart = groups_of(self.run_with(*BLOCKS))
        self.assertEqual(whole.keys(), apart.keys())
        for name, group in whole.items():
            self.assertAlmostEqual(apart[name]["errors"][0] / group["errors"][0], 1, places=5)
            self.assertLessEqual(apart[name]["errors"][1], min(group["errors"]) * (1 + 1e-6), name)
        # With powers of two every s is one.
        out = self.run_with(*BLOCKS, "--fold-scales", "pow2", "--scheme", "f32")
        folded = read_folder(out)["model.layers.0.input_layernorm.weight"][1].astype(float)
        factors = to_f32(self.tensors["model.layers.0.input_layernorm.weight"][1]) / folded.astype("<f4")
        self.assertTrue((np.frexp(factors)[0] == 0.5).all())
        self.assertGreater(len(set(factors)), 2)

    def test_each_block_has_the_s_of_one_of_the_candidates(self):
        """mean |x|^alpha over a power of the weights: of their rms, or with w4a4 of their share of their block's largest."""
        rows = np.concatenate([to_f32(self.tensors[f"model.layers.0.self_attn.{part}_proj.weight"][1]) for part in "qkv"]).astype(float)
        random = np.random.default_rng(8)
        absmean = np.exp(1.5 * random.standard_normal(HIDDEN)).astype("<f4").astype(float)  # as save_statistics draws the first
        blocks = np.abs(rows).reshape(len(rows), -1, 32)
        shares = (blocks / blocks.max(2, keepdims=True)).reshape(rows.shape).mean(0)
        quarters = np.arange(5) / 4
        for objective, weights, factors in (([], np.sqrt((rows**2).mean(0)), (1, np.sqrt(2))), (BOTH, shares, (1,))):
            candidates = []
            for alpha in quarters:
                for beta in quarters:
                    s = np.clip((absmean / absmean.mean())**alpha / (weights / weights.mean())**beta, 1e-2, 1e2)
                    candidates += [factor * s / np.exp(np.log(s).mean()) for factor in factors]
            out = self.run_with(*BLOCKS, *objective, "--scheme", "f32")
            with h5py.File(out / "quantmill_scales.h5") as file:
                groups = file["groups"]
                row = list(groups["names"].asstr()).index("layers.0.qkv")
                chosen = groups["s"][groups["s_offsets"][row]:groups["s_offsets"][row + 1]].reshape(-1, 32)
            for block, s in enumerate(chosen):
                differences = [np.abs(candidate[32 * block:32 * block + 32] / s - 1).max() for candidate in candidates]
                self.assertLess(min(differences), 1e-5, (objective, block))

    def test_balance_is_the_root_of_activations_over_weights(self):
        """From the definition: s = sqrt(mean |x| / rms of the columns of q, k and v), geometric mean 1."""
        out = self.run_with(*BALANCE, "--scheme", "f32", *BOTH)
        group = groups_of(out)["layers.0.qkv"]
        self.assertEqual((group["alpha"], group["beta"]), (0.5, 0.5))
        rows = np.concatenate([to_f32(self.tensors[f"model.layers.0.self_attn.{part}_proj.weight"][1]) for part in "qkv"]).astype(float)
        random = np.random.default_rng(8)
        absmean = np.exp(1.5 * random.standard_normal(HIDDEN)).astype("<f4")  # as save_statistics draws the first
        s = np.sqrt(absmean / np.sqrt((rows**2).mean(0)))
        s /= np.exp(np.log(s).mean())
        gain = to_f32(self.tensors["model.layers.0.input_layernorm.weight"][1])
        np.testing.assert_allclose(gain / read_folder(out)["model.layers.0.input_layernorm.weight"][1], s, rtol=2e-6)

    def test_the_same_bytes_however_it_runs_and_verify(self):
        for options in (GRID + BOTH, BLOCKS + BOTH):
            with self.subTest(options=options):
                out = self.run_with(*options)
                for ranks, more in ((3, []), (2, ["--ranks-per-node", 1, "--threads", 3]), (0, ["--backend", "reference", "--memory", "66M"])):
                    self.assertEqual(hashes(self.run_with(*options, *more, ranks=ranks)), hashes(out))
                result = self.run_program("verify", out, "--against", self.model, "--function")
                self.assertEqual(result.returncode, 0, result.stdout)

    def test_what_does_not_go_together_is_refused(self):
        for words, options in ((("w4a4", "MXFP4"), ["--scheme", "int8", *BOTH]), (("block-grid", "MX"), ["--scheme", "int8", *BLOCKS]),
                               (("betas", "outside"), ["--betas", "0,2"]), (("--betas", "not a number"), ["--betas", "x"]),
                               (("objective", "w4a16"), ["--objective", "w8a8"]), (("betas", "seed"), ["--compat", "seed", "--betas", "0.5"])):
            result = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, *options)
            self.assert_refused(result, 2, *words)


if __name__ == "__main__":
    unittest.main()
