"""A family of the user's own, by --arch FILE: LayerNorm with a bias, and biases of linears that follow a fold."""
import json
import unittest

import numpy as np

import any_model  # noqa: F401: puts the folder of scripts on the path
from jobs import PreparedTest, read_folder, write_safetensors
from make_demo_drafter import write_torch_archive

LAYERS, HIDDEN, INNER = 2, 64, 96
AT = "layers.{layer}."
FILE = {
    "schema": 1, "name": "blocks", "parameters": {"layers": "num_layers", "hidden": "width"}, "indices": {"layer": "layers"},
    "tensors": [
        {"name": AT + "norm.weight", "shape": ["hidden"], "role": "norm"}, {"name": AT + "norm.bias", "shape": ["hidden"]},
        {"name": AT + "up.weight", "role": "linear", "quantize": True}, {"name": AT + "up.bias"},
        {"name": AT + "router.weight", "role": "linear"},
        {"name": AT + "down.weight", "role": "linear", "quantize": True}, {"name": AT + "down.bias"}],
    "activations": [
        {"name": AT + "in", "producer": {"norm": AT + "norm.weight", "bias": AT + "norm.bias"}, "readers": [AT + "up.weight", AT + "router.weight"]},
        {"name": AT + "mid", "producer": {"rows": AT + "up.weight", "bias": AT + "up.bias"}, "readers": [AT + "down.weight"]}]}


def outputs(tensors, x):
    """The model in double: LayerNorm, up, ReLU, down, and what a router makes of the same norm."""
    routed = []
    for layer in range(LAYERS):
        get = lambda name: tensors[f"layers.{layer}.{name}"].astype(float)  # noqa: E731, B023
        normed = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * get("norm.weight") + get("norm.bias")
        routed.append(normed @ get("router.weight").T)
        x = x + np.maximum(normed @ get("up.weight").T + get("up.bias"), 0) @ get("down.weight").T + get("down.bias")
    return np.concatenate([x, *routed], -1)


class CustomArchitecture(PreparedTest):
    def prepare(self):
        cls = type(self)
        random = np.random.default_rng(2)
        source, records = self.folder / "model", {}
        source.mkdir()
        cls.tensors = {}
        for layer in range(LAYERS):
            for name, shape in {"norm.weight": (HIDDEN,), "norm.bias": (HIDDEN,), "up.weight": (INNER, HIDDEN), "up.bias": (INNER,),
                                "router.weight": (3, HIDDEN), "down.weight": (HIDDEN, INNER), "down.bias": (HIDDEN,)}.items():
                cls.tensors[f"layers.{layer}.{name}"] = random.standard_normal(shape).astype("<f4") / (1 if len(shape) == 1 else shape[-1] ** 0.5)
            for name, size in (("up", HIDDEN), ("down", INNER)):
                records[f"layers.{layer}.{name}"] = {"absmean": np.exp(1.5 * random.standard_normal(size)).astype("<f4"), "count": 4096}
        write_safetensors(source / "model.safetensors", {name: ("F32", values) for name, values in cls.tensors.items()})
        (source / "config.json").write_text(json.dumps({"architectures": ["NobodyKnowsThis"], "num_layers": LAYERS, "width": HIDDEN}))
        write_torch_archive(self.folder / "calib.tp0.pt", records)
        cls.file = self.folder / "blocks.json"
        cls.file.write_text(json.dumps(FILE))
        cls.source, cls.stats = source, self.folder / "calib"
        cls.x = random.standard_normal((20, HIDDEN))

    def folded(self):
        out = self.quantize("--arch", self.file, "--layout", "plain", "--scheme", "f32", "--scaling", "awq-grid", source=self.source, stats=self.stats)
        return out, {name: values for name, (_, values) in read_folder(out).items()}

    def test_a_bias_after_a_norm_is_divided_like_its_weight(self):
        out, folded = self.folded()
        wanted = outputs(self.tensors, self.x)
        off = lambda tensors: np.abs(outputs(tensors, self.x) - wanted).max() / np.abs(wanted).max()  # noqa: E731
        self.assertLess(off(folded), 1e-6)
        for name, values in folded.items():
            if name.endswith("down.bias"):
                np.testing.assert_array_equal(values, self.tensors[name])
                continue
            self.assertFalse(np.array_equal(values, self.tensors[name]), name)
            self.assertGreater(off({**folded, name: self.tensors[name]}), 1e-3, f"{name} put back is not seen")
        result = self.run_program("verify", out, "--against", self.source, "--function")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_it_is_needed_and_checked(self):
        result = self.run_program("plan", self.source, self.folder / "out", "--scaling", "none")
        self.assert_refused(result, 3, "NobodyKnowsThis", "--arch FILE")
        checked = self.run_program("arch", "check", self.file, self.source)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        self.assertRegex(checked.stdout, r"\n +2 +0  layers.\{layer\}.norm.bias\n")
        out = self.quantize("--arch", self.file, "--scale-rule", "even", "--scaling", "awq-grid", "--objective", "w4a16",
                            source=self.source, stats=self.stats)
        self.assertEqual([name for name, (dtype, _) in read_folder(out).items() if dtype == "U8" and "scale" not in name],
                         [f"layers.{layer}.{part}.weight" for layer in range(LAYERS) for part in ("down", "up")])


if __name__ == "__main__":
    unittest.main()
