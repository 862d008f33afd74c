"""Every source format in every scheme: what is written is what the decoded weights give. Prints the relative errors."""
import contextlib
import unittest

import numpy as np

import schemes
from coded_models import CodedModel
from coded_weights import CONFIGS
from jobs import JobTest, read_folder

LAYER = "model.layers.0."
LINEARS = [LAYER + name for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")]
TARGETS = ["mxfp4", "mxfp6-e2m3", "nvfp4", "fp8-tensor", "fp8-channel", "fp8-block", "int8", "int4-asym-g32"]
# Codes that are carried over: nothing is rounded, in either direction.
CARRIED = {("fp8-block", "fp8-block"), ("fp8-block-bf16", "fp8-block"), ("fp8-channel", "fp8-channel"), ("mxfp4", "mxfp4")}


class Matrix(JobTest):
    def convert(self, source, scheme):
        out = source.with_name(f"{source.name}.{scheme}")
        result = self.run_program("convert", source, out, "--scheme", scheme)
        self.assertEqual(result.returncode, 0, result.stderr)
        return schemes.read_target(out, scheme)

    def plain(self, model, folder):
        """The same model with its decoded weights in F32."""
        other = CodedModel("plain", layers=1)
        other.tensors = {name: ("F32", values) for name, values in model.values.items()}
        return other.save(folder, files=1)

    def check(self, kind, scheme, model, coded, plain):
        got = self.convert(coded, scheme)
        error = 0
        for name in LINEARS:
            wanted = model.values[name + ".weight"].astype(float)
            values = schemes.decoded(got, name + ".weight").astype("<f4")
            error = max(error, np.linalg.norm(values - wanted) / np.linalg.norm(wanted))
        if (kind, scheme) in CARRIED:
            self.assertEqual(error, 0)
            return "carried"
        for name, value in self.convert(plain, scheme).items():
            if name.startswith(tuple(LINEARS)):
                np.testing.assert_array_equal(got[name][1], value[1], name)
        self.assertLess(error, 0.5)
        return f"{error:.4f}"

    def test_matrix(self):
        rows = [["", *TARGETS]]
        for kind in CONFIGS:
            model = CodedModel(kind, layers=1)
            coded = model.save(self.folder / kind, files=1)
            plain = self.plain(model, self.folder / f"{kind}-decoded")
            exact = self.convert(coded, "f32")
            for name in LINEARS:
                np.testing.assert_array_equal(exact[name + ".weight"][1], model.values[name + ".weight"], name)
            rows.append([kind])
            for scheme in TARGETS:
                with self.subTest(source=kind, target=scheme):
                    rows[-1].append(self.check(kind, scheme, model, coded, plain))
        with contextlib.suppress(BrokenPipeError):
            print("\n".join("  ".join(f"{cell:>14}" for cell in row) for row in rows))


if __name__ == "__main__":
    unittest.main()
