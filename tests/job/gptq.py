"""--rounding gptq: what a column loses is made good in later ones, by Gram matrices in the statistics."""
import shutil
import unittest

import h5py
import numpy as np

from any_model import EXPERT, EXPERTS, HEAD, HEADS, HIDDEN, LAYERS, Model, save, to_f32
from gram_statistics import write_statistics
from jobs import PreparedTest, hashes, read_folder
from scale_search import nearest_e2m1
from schemes import decoded

TOKENS = 200
QUICK = ["--scaling", "none", "--scale-rule", "even"]
MEAN_SQUARES = ["--scaling", "none", "--scale-rule", "mse"]


def inputs_of_model():
    """Tokens whose channels go together, as those of models do."""
    random = np.random.default_rng(5)
    widths = {}
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        widths |= {at + "self_attn.q_proj": HIDDEN, at + "self_attn.o_proj": HEADS * HEAD, at + "mlp.gate": HIDDEN}
        widths |= {f"{at}mlp.experts.{expert}.down_proj": EXPERT for expert in range(EXPERTS)}
    return {name: random.standard_normal((TOKENS, 8)) @ random.standard_normal((8, width))
            + 0.5 * random.standard_normal((TOKENS, width)) for name, width in widths.items()}


def gptq(weight, gram, scales):
    """Frantar et al., algorithm 1, in double: rows rounded to e2m1 times 2^scales, columns by falling diagonal, how two go together
    counting 0.9."""
    columns = len(gram)
    order = np.argsort(-np.diag(gram), kind="stable")
    damping = np.clip(columns / TOKENS, 0.01, 1) * np.diag(gram).mean()
    trusted = 0.9 * gram + np.diag(0.1 * np.diag(gram) + damping)
    inverse = np.linalg.inv(trusted[np.ix_(order, order)])
    upper = np.linalg.cholesky(inverse).T
    left, rounded = weight[:, order].astype(float), np.zeros(weight.shape)
    for i, column in enumerate(order):
        rounded[:, column] = nearest_e2m1(left[:, i] / scales[:, column]) * scales[:, column]
        loss = (left[:, i] - rounded[:, column]) / upper[i, i]
        left[:, i + 1:] -= np.outer(loss, upper[i, i + 1:])
    return rounded


class Gptq(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.tensors = Model().tensors
        cls.model = save(self.folder / "model", cls.tensors)
        cls.stats = self.folder / "calib.h5"
        cls.inputs = inputs_of_model()
        cls.grams = write_statistics(cls.stats, cls.inputs)

    def weights(self):
        """Name and recorded input of one weight of every kind."""
        return [("model.layers.1.self_attn.v_proj", "layers.1.self_attn.q_proj"),
                ("model.layers.0.self_attn.o_proj", "layers.0.self_attn.o_proj"),
                ("model.layers.0.mlp.experts.2.up_proj", "layers.0.mlp.gate"),
                ("model.layers.1.mlp.experts.0.down_proj", "layers.1.mlp.experts.0.down_proj")]

    def output_error(self, out, module, recorded, scheme=""):
        difference = decoded(read_folder(out) | {"scheme": scheme}, module + ".weight") - to_f32(self.tensors[module + ".weight"][1])
        return np.einsum("ri,ij,rj->", difference, self.grams[recorded].astype(float), difference)

    def test_codes_are_those_of_the_paper(self):
        out = self.quantize(*QUICK, "--rounding", "gptq", source=self.model, stats=self.stats)
        nearest = self.quantize(*QUICK, source=self.model, stats=None)
        for module, recorded in self.weights():
            name = module + ".weight"
            scale_bytes = read_folder(out)[name + "_scale"][1]
            np.testing.assert_array_equal(scale_bytes, read_folder(nearest)[name + "_scale"][1])
            scales = np.repeat(2.0 ** (scale_bytes.astype(int) - 127), 32, 1)
            wanted = gptq(to_f32(self.tensors[name][1]), self.grams[recorded].astype(float), scales)
            got = decoded(read_folder(out), name)
            # A sum that lies between two codes to within float may go either way, and what follows in its row with it.
            self.assertGreater((got == wanted).all(1).mean(), 0.95, name)
            self.assertLess((decoded(read_folder(nearest), name) == wanted).all(1).mean(), 0.05, name)
            self.assertLess(self.output_error(out, module, recorded), 0.6 * self.output_error(nearest, module, recorded))

    def test_scaled_weights_too(self):
        options = ["--scaling", "awq-grid", "--scale-rule", "mse", "--objective", "w4a16"]
        module, recorded = "model.layers.1.self_attn.v_proj", "layers.1.self_attn.q_proj"
        errors = {}
        for rounding in ("nearest", "gptq"):
            out = self.quantize(*options, "--rounding", rounding, source=self.model, stats=self.stats)
            norms = [to_f32(tensors["model.layers.1.input_layernorm.weight"][1]) for tensors in (read_folder(out), self.tensors)]
            s = norms[1] / norms[0]
            self.assertGreater(np.ptp(s), 0.1)
            difference = decoded(read_folder(out), module + ".weight") / s - to_f32(self.tensors[module + ".weight"][1])
            errors[rounding] = np.einsum("ri,ij,rj->", difference, self.grams[recorded].astype(float), difference)
        self.assertLess(errors["gptq"], 0.85 * errors["nearest"])

    def test_every_scheme_that_takes_it(self):
        for scheme in ("mxfp4", "nvfp4", "int4-g32", "int4-asym-g32"):
            with self.subTest(scheme=scheme):
                options = ["--scheme", scheme, "--scaling", "none"]
                out = self.quantize(*options, "--rounding", "gptq", source=self.model, stats=self.stats)
                nearest = self.quantize(*options, source=self.model, stats=None)
                for module, recorded in self.weights():
                    errors = [self.output_error(folder, module, recorded, scheme) for folder in (out, nearest)]
                    self.assertLess(errors[0], 0.75 * errors[1], module)

    def test_the_same_bytes_however_it_runs_and_verify_makes_them_again(self):
        for scheme in ("mxfp4", "int4-asym-g32"):
            options = ["--scheme", scheme, "--scaling", "awq-grid", "--rounding", "gptq"]
            out = self.quantize(*options, source=self.model, stats=self.stats)
            for ranks, more in ((3, []), (2, ["--ranks-per-node", 1, "--threads", 3]), (0, ["--backend", "reference"]),
                                (0, ["--memory", "70M", "--threads", 1])):
                again = self.quantize(*options, *more, source=self.model, stats=self.stats, ranks=ranks)
                self.assertEqual(hashes(again), hashes(out))
            result = self.run_program("verify", out, "--against", self.model, "--stats", self.stats, "--function")
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assert_refused(self.run_program("verify", out, "--against", self.model), 2, "gptq", "--stats")

    def test_a_job_with_other_matrices_is_not_resumed(self):
        out = self.quantize(*QUICK, "--rounding", "gptq", source=self.model, stats=self.stats)
        other = self.folder / "other.h5"
        shutil.copy(self.stats, other)
        command = ["quantize", self.model, out, *QUICK, "--rounding", "gptq", "--stats", other, "--resume"]
        result = self.run_program(*command)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("nothing to do", result.stdout)
        with h5py.File(other, "r+") as file:  # of the same size, and with the same means of squares
            gram = file["inputs/layers.1.mlp.experts.2.down_proj/gram"]
            signs = np.where(np.arange(EXPERT) == EXPERT - 2, -1, 1)
            gram[:] *= np.outer(signs, signs)[np.tril_indices(EXPERT)]
        self.assert_refused(self.run_program(*command), 2, "exists and is of another job", "Gram matrices was")
        nearest = self.run_program("quantize", self.model, self.folder / "nearest", *MEAN_SQUARES, "--stats", other)
        self.assertEqual(nearest.returncode, 0, nearest.stderr)
        again = self.run_program("quantize", self.model, self.folder / "nearest", *MEAN_SQUARES, "--stats", self.stats, "--resume")
        self.assertIn("nothing to do", again.stdout)

    def test_what_has_no_matrix_is_rounded_to_the_nearest(self):
        stats = self.folder / "part.h5"
        write_statistics(stats, self.inputs)
        with h5py.File(stats, "r+") as file:
            del file["inputs/layers.1.self_attn.q_proj/gram"]
        nearest = self.quantize(*QUICK, source=self.model, stats=None)
        result = self.run_program("quantize", self.model, self.folder / "out", *QUICK, "--rounding", "gptq", "--stats", stats)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, "gptq: 23 of 26 quantized tensors; the others")
        out = read_folder(self.folder / "out")
        for module, recorded in self.weights():
            same = (out[module + ".weight"][1] == read_folder(nearest)[module + ".weight"][1]).all()
            self.assertEqual(same, recorded == "layers.1.self_attn.q_proj", module)

    def test_plan_says_what_is_rounded_so(self):
        result = self.run_program("plan", self.model, self.folder / "out", *QUICK, "--rounding", "gptq", "--stats", self.stats)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("gptq: 26 of 26 quantized tensors\n", result.stdout)

    def test_refusals(self):
        plain = self.folder / "plain.h5"
        write_statistics(plain, self.inputs, grams=False)
        damaged = self.folder / "damaged.h5"
        write_statistics(damaged, self.inputs)
        with h5py.File(damaged, "r+") as file:
            file["inputs/layers.0.mlp.gate/gram"][5] = np.nan
        short = self.folder / "short.h5"
        write_statistics(short, self.inputs)
        with h5py.File(short, "r+") as file:
            del file["inputs/layers.0.mlp.gate/gram"]
            file["inputs/layers.0.mlp.gate/gram"] = np.ones(10, "<f4")
        for stats, more, status, words in (
                (None, [], 2, ["--rounding gptq needs", "--stats", "scripts/collect --gram"]),
                (plain, [], 3, ["no Gram matrix", "scripts/collect --gram"]),
                (damaged, [], 3, [r"layers\.0\.mlp\.gate/gram", "nan"]),
                (short, [], 3, [r"layers\.0\.mlp\.gate/gram", "has 10 values", "64 channels has 2080"]),
                (self.stats, ["--scheme", "fp8-channel"], 2, ["gptq", "fp8-channel", "nearest"]),
                (self.stats, ["--memory", "100K"], 2, ["--memory", "--rounding gptq", "factors take"])):
            with self.subTest(words=words):
                given = ["--stats", stats] if stats else []
                for command in ("quantize", "plan"):
                    result = self.run_program(command, self.model, self.folder / "refused", "--rounding", "gptq", *QUICK, *given, *more)
                    if command == "plan" and stats in (damaged, short):
                        continue  # it reads no matrices
                    self.assert_refused(result, status, *words)


if __name__ == "__main__":
    unittest.main()
