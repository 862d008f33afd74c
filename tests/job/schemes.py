"""Every scheme in every layout that takes it: what is written is what the numbers say, and reads back."""
import json
import unittest

import numpy as np

from any_model import Model, save, save_statistics, to_f32
from jobs import PreparedTest, hashes, read_folder
from sources import e2m1, e4m3, nibbles_of, spread

LAYOUTS = {"mxfp4": ["quark", "compressed-tensors"], "mxfp6-e2m3": ["quark"], "mxfp6-e3m2": ["quark"],
           "fp8-channel": ["compressed-tensors", "quark"], "fp8-block": ["fp8", "compressed-tensors"],
           "int8": ["compressed-tensors"], "int4-g32": ["compressed-tensors"]}
# Root mean square of the rounding error of a normal weight, relative; measured once, as the formats allow.
ERRORS = {"mxfp4": 0.15, "mxfp6-e2m3": 0.04, "mxfp6-e3m2": 0.06, "fp8-channel": 0.03, "fp8-block": 0.03, "int8": 0.01, "int4-g32": 0.11}


def six_bits(packed):
    triples = packed.reshape(*packed.shape[:-1], -1, 3).astype(np.uint32)
    word = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    return np.stack([word >> (6 * i) & 63 for i in range(4)], -1).reshape(*packed.shape[:-1], -1)


def small_float(codes, exponent_bits, mantissa_bits, bias):
    """Sign, exponent, mantissa; subnormal below exponent field 1 (OCP MX 1.0, table 1)."""
    codes = codes.astype(int)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = codes >> mantissa_bits & ((1 << exponent_bits) - 1)
    sign = np.where(codes >> (exponent_bits + mantissa_bits) & 1, -1.0, 1.0)
    return sign * np.where(exponent == 0, mantissa * 2.0 ** (1 - bias - mantissa_bits),
                           ((1 << mantissa_bits) + mantissa) * 2.0 ** (exponent - bias - mantissa_bits))


def decoded(tensors, name):
    """What a stored weight stands for, by the definition of its layout."""
    base = name.removesuffix(".weight")
    scale = base + ".weight_scale"
    if base + ".weight_packed" in tensors and tensors[base + ".weight_packed"][0] == "I32":
        rows, cols = tensors[base + ".weight_shape"][1]
        words = tensors[base + ".weight_packed"][1].view("<u4")
        codes = ((words[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15).astype(int) - 8).reshape(rows, cols)
        scales = to_f32(tensors[scale][1])
        return codes * np.repeat(scales, cols // scales.shape[1], 1).astype(float)
    dtype, codes = tensors.get(name) or tensors[base + ".weight_packed"]
    if dtype == "U8":
        exponents = tensors[scale][1].astype(int) - 127
        width, blocks = codes.shape[1], exponents.shape[1]
        if width == 16 * blocks:
            values = e2m1(nibbles_of(codes)).astype(float)
        else:
            element = tensors["element"]
            values = small_float(six_bits(codes), *element)
        return values * np.repeat(2.0 ** exponents, 32, 1)
    scales = tensors[name + "_scale_inv"][1] if name + "_scale_inv" in tensors else tensors[scale][1]
    scales = scales.reshape(scales.shape[0], -1)
    block = (1, codes.shape[1]) if scales.shape[1] == 1 and scales.shape[0] == codes.shape[0] else (128, 128)
    values = codes.astype(np.int8).astype(float) if dtype == "I8" else e4m3(codes).astype(float)
    return values * spread(scales.astype(float), codes.shape, block)


class Schemes(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.tensors = Model().tensors
        cls.model = save(self.folder / "model", cls.tensors)
        cls.stats = save_statistics(self.folder / "calib")

    def test_values_are_within_the_formats_error_and_files_verify(self):
        for scheme, layouts in LAYOUTS.items():
            for layout in layouts:
                with self.subTest(scheme=scheme, layout=layout):
                    out = self.quantize("--scheme", scheme, "--layout", layout, "--scaling", "none", source=self.model, stats=None, ranks=2)
                    tensors = read_folder(out)
                    tensors["element"] = (2, 3, 1) if scheme.endswith("e2m3") else (3, 2, 3)
                    for name, (_, source) in self.tensors.items():
                        if not name.endswith("_proj.weight"):
                            continue
                        wanted = to_f32(source).astype(float)
                        error = np.linalg.norm(decoded(tensors, name) - wanted) / np.linalg.norm(wanted)
                        self.assertLess(error, ERRORS[scheme], name)
                        self.assertGreater(error, ERRORS[scheme] / 4, name)
                    result = self.run_program("verify", out, "--against", self.model)
                    self.assertEqual(result.returncode, 0, result.stdout)

    def test_the_program_reads_what_it_writes(self):
        for scheme, layouts in LAYOUTS.items():
            for layout in layouts:
                with self.subTest(scheme=scheme, layout=layout):
                    out = self.quantize("--scheme", scheme, "--layout", layout, "--scaling", "none", source=self.model, stats=None)
                    plain = read_folder(self.quantize("--scheme", "f32", "--scaling", "none", source=out, stats=None))
                    tensors = read_folder(out)
                    tensors["element"] = (2, 3, 1) if scheme.endswith("e2m3") else (3, 2, 3)
                    for name in sorted(self.tensors):
                        if name.endswith("_proj.weight"):
                            np.testing.assert_array_equal(plain[name][1], decoded(tensors, name).astype("<f4"), name)
                    name = "model.layers.1.self_attn.o_proj.weight"
                    shown = json.loads(self.run_program("inspect", out, "--tensor", name, "--json").stdout)
                    np.testing.assert_array_equal(np.array(shown["values"], "<f4"), plain[name][1])

    def test_scales_are_searched_for_every_scheme_and_never_hurt_the_objective(self):
        for scheme in LAYOUTS:
            with self.subTest(scheme=scheme):
                out = self.quantize("--scheme", scheme, source=self.model, stats=self.stats, ranks=2)
                manifest = json.loads((out / "quantmill_manifest.json").read_text())
                searched = [group for group in manifest["fold_groups"] if not group["not_scaled"]]
                self.assertGreater(len(searched), 5)
                for group in searched:
                    self.assertLessEqual(min(group["errors"]), group["errors"][0])
                result = self.run_program("verify", out, "--against", self.model, "--function")
                self.assertEqual(result.returncode, 0, result.stdout)

    def test_bytes_do_not_depend_on_ranks_threads_or_memory(self):
        for scheme in ("fp8-block", "int4-g32", "mxfp6-e2m3"):
            with self.subTest(scheme=scheme):
                wanted = hashes(self.quantize("--scheme", scheme, source=self.model, stats=self.stats))
                for ranks, options in ((3, []), (2, ["--ranks-per-node", "1", "--threads", "3"]), (0, ["--memory", "66M", "--backend", "reference"])):
                    self.assertEqual(hashes(self.quantize("--scheme", scheme, *options, source=self.model, stats=self.stats, ranks=ranks)), wanted)

    def test_convert_is_quantize_without_scales(self):
        wanted = self.quantize("--scheme", "fp8-block", "--scaling", "none", source=self.model, stats=None)
        out = self.folder / "converted"
        self.assertEqual(self.run_program("convert", self.model, out, "--scheme", "fp8-block").returncode, 0)
        self.assertEqual(hashes(out), hashes(wanted))
        self.assert_refused(self.run_program("convert", self.model, self.folder / "o", "--stats", self.stats), 2, "convert scales nothing")

    def test_a_layout_that_lacks_the_scheme_is_refused(self):
        result = self.run_program("plan", self.model, self.folder / "out", "--scheme", "int4-g32", "--layout", "quark", "--scaling", "none")
        self.assert_refused(result, 2, '"quark" takes the schemes mxfp4', '"int4-g32" the layouts compressed-tensors')
        result = self.run_program("plan", self.model, self.folder / "out", "--scheme", "int4-g128", "--scaling", "none")
        self.assert_refused(result, 3, "64 columns are not a multiple of the 128 that share a scale in int4-g128", "--keep")

    def test_the_config_says_what_was_done(self):
        for scheme, layout, wanted in (("fp8-block", "fp8", ("fp8", None)), ("int8", "compressed-tensors", ("compressed-tensors", "int-quantized")),
                                       ("mxfp4", "compressed-tensors", ("compressed-tensors", "mxfp4-pack-quantized"))):
            out = self.quantize("--scheme", scheme, "--layout", layout, "--scaling", "none", source=self.model, stats=None)
            section = json.loads((out / "config.json").read_text())["quantization_config"]
            self.assertEqual((section["quant_method"], section.get("format")), wanted)
            kept = section.get("ignore") or section["modules_to_not_convert"]
            self.assertIn("model.layers.0.mlp.gate", kept)
            self.assertIn("lm_head", kept)


if __name__ == "__main__":
    unittest.main()
