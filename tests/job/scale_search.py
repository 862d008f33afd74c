"""--scale-rule mse: every block has the scale of least error, weighted by the statistics."""
import json
import unittest

import numpy as np

from any_model import EXPERT, EXPERTS, HEAD, HEADS, HIDDEN, LAYERS, Model, save, to_f32, write_torch_archive
from jobs import PreparedTest, hashes, read_folder
from schemes import decoded

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest_e2m1(values):
    """The nearest e2m1 value; ties, which all lie between codes of different parity, to the even code."""
    magnitudes = np.minimum(np.abs(values), 6)
    distance = np.abs(magnitudes[..., None] - E2M1)
    even_first = np.argsort(np.arange(8) % 2, kind="stable")
    return np.sign(values) * E2M1[even_first][np.argmin(distance[..., even_first], -1)]


def best_mx_values(weight, importance):
    """Each block of 32 rounded with the exponent, of floor's and its neighbours, of least weighted error."""
    blocks = weight.astype(float).reshape(-1, 32)
    weights = np.tile(importance.reshape(-1, 32), (weight.shape[0], 1))
    largest = np.abs(blocks).max(1)
    floor = np.frexp(largest)[1] - 1 - 2
    tried = [np.exp2(floor + offset)[:, None] for offset in (0, 1, -1)]
    rounded = np.stack([nearest_e2m1(blocks / scale) * scale for scale in tried])
    errors = (((rounded - blocks) * weights) ** 2).sum(-1)
    return rounded[np.argmin(errors, 0), np.arange(len(blocks))].reshape(weight.shape), errors


def record(prefix, width=lambda size: size):
    """Statistics in which mean |x| says something else than mean x^2, which counts. Returns the root of that by input."""
    random = np.random.default_rng(9)
    inputs = {}
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        inputs |= {at + "self_attn.q_proj": HIDDEN, at + "self_attn.o_proj": HEADS * HEAD, at + "mlp.gate": HIDDEN}
        inputs |= {f"{at}mlp.experts.{expert}.down_proj": EXPERT for expert in range(EXPERTS)}
    roots = {name: np.exp(random.standard_normal(width(size))).astype("<f4") for name, size in inputs.items()}
    write_torch_archive(prefix.parent / f"{prefix.name}.tp0.pt",
                        {name: {"absmean": (root * random.random(len(root))).astype("<f4"), "sqmean": root * root, "count": 4096}
                         for name, root in roots.items()})
    return roots


class ScaleSearch(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.tensors = Model().tensors
        cls.model = save(self.folder / "model", cls.tensors)
        cls.stats = self.folder / "calib"
        cls.roots = record(cls.stats)

    def error(self, out, name, importance):
        wanted = to_f32(self.tensors[name][1]).astype(float)
        return (((decoded(read_folder(out), name) - wanted) * importance) ** 2).sum()

    def test_blocks_have_the_exponent_of_least_weighted_error(self):
        out = self.quantize("--scale-rule", "mse", "--scaling", "none", source=self.model, stats=self.stats, ranks=2)
        plain = self.quantize("--scale-rule", "mse", "--scaling", "none", source=self.model, stats=None)
        unlike = 0
        for module, recorded in (("self_attn.q_proj", "self_attn.q_proj"), ("self_attn.v_proj", "self_attn.q_proj"),
                                 ("self_attn.o_proj", "self_attn.o_proj"), ("mlp.experts.2.down_proj", "mlp.experts.2.down_proj"),
                                 ("mlp.experts.1.up_proj", "mlp.gate")):
            name = f"model.layers.1.{module}"
            weight = to_f32(self.tensors[name + ".weight"][1])
            wanted, errors = best_mx_values(weight, self.roots[f"layers.1.{recorded}"].astype(float))
            apart = np.diff(np.sort(errors, 0), axis=0)[0] > 1e-5 * errors.min(0)  # no tie to within float
            got = decoded(read_folder(out), name + ".weight").reshape(-1, 32)
            np.testing.assert_array_equal(got[apart], wanted.reshape(-1, 32)[apart], name)
            self.assertGreater(apart.mean(), 0.9)
            unweighted, _ = best_mx_values(weight, np.ones(weight.shape[1]))
            np.testing.assert_array_equal(decoded(read_folder(plain), name + ".weight"), unweighted, name)
            unlike += (unweighted != wanted).sum()
        self.assertGreater(unlike, 100)

    def test_no_other_rule_has_less_error(self):
        name = "model.layers.1.self_attn.q_proj"
        for scheme in ("mxfp4", "mxfp6-e2m3", "nvfp4", "int4-g32", "int4-asym-g32"):
            with self.subTest(scheme=scheme):
                errors = {}
                for rule in ("mse", "even", "floor"):
                    out = self.quantize("--scheme", scheme, "--scale-rule", rule, "--scaling", "none", source=self.model,
                                        stats=self.stats if rule == "mse" else None)
                    if scheme == "mxfp6-e2m3":
                        plain = self.quantize("--scheme", "f32", "--scaling", "none", source=out, stats=None)
                        difference = read_folder(plain)[name + ".weight"][1] - to_f32(self.tensors[name + ".weight"][1])
                        errors[rule] = ((difference * self.roots["layers.1.self_attn.q_proj"]) ** 2).sum()
                    else:
                        errors[rule] = self.error(out, name + ".weight", self.roots["layers.1.self_attn.q_proj"])
                self.assertLess(errors["mse"], min(errors["even"], errors["floor"]))

    def test_the_same_bytes_however_it_runs_and_verify_makes_them_again(self):
        for scheme in ("mxfp4", "nvfp4", "int4-g32"):
            with self.subTest(scheme=scheme):
                options = ["--scheme", scheme, "--scale-rule", "mse"]
                out = self.quantize(*options, source=self.model, stats=self.stats)
                for ranks, more in ((3, []), (2, ["--ranks-per-node", 1, "--threads", 3]), (0, ["--backend", "reference"])):
                    again = self.quantize(*options, *more, source=self.model, stats=self.stats, ranks=ranks)
                    self.assertEqual(hashes(again), hashes(out))
                result = self.run_program("verify", out, "--against", self.model, "--function")
                self.assertEqual(result.returncode, 0, result.stdout)
                given = self.quantize(*options, "--scales", out / "quantmill_scales.h5", source=self.model, stats=None)
                self.assertEqual(read_folder(given)["model.layers.0.self_attn.q_proj.weight_scale"][1].tobytes(),
                                 read_folder(out)["model.layers.0.self_attn.q_proj.weight_scale"][1].tobytes())

    def test_the_search_of_channel_scales_counts_on_it(self):
        found = {}
        for rule in ("mse", "even"):
            out = self.quantize("--scaling", "awq-grid", "--objective", "w4a16", "--scale-rule", rule, source=self.model, stats=self.stats)
            groups = json.loads((out / "quantmill_manifest.json").read_text())["fold_groups"]
            found[rule] = {group["name"]: group["errors"] for group in groups if group["alpha"] is not None}
        self.assertGreater(len(found["mse"]), 5)
        for name, errors in found["mse"].items():
            self.assertTrue(all(np.array(errors) <= np.array(found["even"][name])), name)
            self.assertLess(errors[0], found["even"][name][0], name)

    def test_statistics_of_another_model_are_refused(self):
        other = self.folder / "other"
        record(other, lambda size: size - 1)
        result = self.run_program("quantize", self.model, self.folder / "out", "--stats", other, "--scale-rule", "mse", "--scaling", "none")
        self.assert_refused(result, 3, "channels", "another model")


if __name__ == "__main__":
    unittest.main()
