"""Codes that a source has in the scheme that is asked for: carried over, not rounded again. FP8 by blocks and channels: targets.py."""
import unittest

import numpy as np

from any_model import Model, save, save_statistics, to_bf16, to_f32
from jobs import JobTest, hashes, read_folder
from schemes import decoded
from sources import e2m1, e4m3, nibbles_of

SYMMETRIC = {"num_bits": 4, "group_size": 32, "symmetric": True}
PACKED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
KEY = "model.layers.1.self_attn.k_proj"  # servers put it and q and v into one


def words(fields):
    """Fields of four bits in words of 32 along the last axis, the first in the lowest."""
    split = fields.reshape(*fields.shape[:-1], -1, 8).astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))
    return np.bitwise_or.reduce(split, -1).view("<i4")


class Carried(JobTest):
    def setUp(self):
        super().setUp()
        self.random = np.random.default_rng(12)
        self.tensors, self.values = Model().tensors, {}

    def linears(self):
        return [name.removesuffix(".weight") for name in list(self.tensors) if name.endswith("_proj.weight")]

    def put(self, base, parts, values):
        del self.tensors[base + ".weight"]
        self.tensors |= {base + suffix: value for suffix, value in parts.items()}
        self.values[base + ".weight"] = values.astype("<f4")

    def shape(self, base):
        return self.tensors[base + ".weight"][1].shape

    def scales(self, *shape):
        return to_bf16(np.exp(self.random.normal(-6, 1, shape)))

    def source(self, section, name="model", tensors=None):
        return save(self.folder / name, tensors or self.tensors, quantization_config=section)

    def convert(self, source, *options, ranks=2):
        """Without statistics; decodes to what the source's codes stand for, and verifies."""
        out = self.quantize("--scaling", "none", *options, source=source, stats=None, ranks=ranks)
        result = self.run_program("verify", out, "--against", source)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        plain = read_folder(self.quantize("--scheme", "f32", "--scaling", "none", source=out, stats=None))
        for name, values in self.values.items():
            np.testing.assert_array_equal(plain[name][1], values, name)
        return out

    def check_same(self, out, tensors=None):
        got = read_folder(out)
        for name, (dtype, values) in (tensors or self.tensors).items():
            self.assertEqual((got[name][0], got[name][1].shape), (dtype, values.shape), name)
            self.assertEqual(got[name][1].tobytes(), values.tobytes(), name)

    def put_int4(self, asymmetric):
        for base in self.linears():
            rows, cols = self.shape(base)
            codes, stored = self.random.integers(0, 16, (rows, cols)), self.scales(rows, cols // 32)
            zeros = self.random.integers(0, 16, (rows, cols // 32)) if asymmetric else np.full((rows, cols // 32), 8)
            parts = {".weight_packed": ("I32", words(codes)), ".weight_scale": ("BF16", stored),
                     ".weight_shape": ("I64", np.array([rows, cols], "<i8"))}
            if asymmetric:
                parts[".weight_zero_point"] = ("I32", np.ascontiguousarray(words(zeros.T).T))
            self.put(base, parts, (codes - np.repeat(zeros, 32, 1)) * np.repeat(to_f32(stored), 32, 1))
        return self.source(PACKED | {"config_groups": {"group_0": {"weights": SYMMETRIC | {"symmetric": not asymmetric}}}})

    def test_int4_comes_out_as_it_went_in(self):
        for scheme, asymmetric in (("int4-g32", False), ("int4-asym-g32", True)):
            with self.subTest(scheme=scheme):
                self.setUp()
                source = self.put_int4(asymmetric)
                out = self.convert(source, "--scheme", scheme)
                self.check_same(out)
                wanted = hashes(out)
                for options in (("--memory", "66M", "--threads", "1"), ("--backend", "reference")):
                    again = self.quantize("--scaling", "none", "--scheme", scheme, *options, source=source, stats=None, ranks=3)
                    self.assertEqual(hashes(again), wanted)
                turned = self.convert(source, "--scheme", scheme, "--layout", "quark")  # to Quark's layout, and back
                self.check_same(self.convert(turned, "--scheme", scheme, "--layout", "compressed-tensors"))

    def test_int4_of_other_groups_or_with_other_zero_points_is_rounded_anew(self):
        source = self.put_int4(False)
        for scheme in ("int4-asym-g32", "w8a16"):
            got = read_folder(self.quantize("--scaling", "none", "--scheme", scheme, source=source, stats=None))
            base = "model.layers.0.self_attn.q_proj"
            difference = decoded(got | {"scheme": scheme}, base + ".weight") - self.values[base + ".weight"]
            self.assertGreater(np.abs(difference).max(), 0)

    def test_scaled_int4_is_rounded_anew(self):
        source = self.put_int4(False)
        stats = save_statistics(self.folder / "calib")
        scales = self.quantize("--scaling", "awq-grid", source=source, stats=stats) / "quantmill_scales.h5"
        got = read_folder(self.quantize("--scheme", "int4-g32", "--scales", scales, source=source, stats=None))
        name = "model.layers.1.self_attn.q_proj.weight_packed"
        self.assertFalse(np.array_equal(got[name][1], self.tensors[name][1]))

    def test_gptq_of_bf16_scales(self):
        """Its symmetric codes have zero points of 8, its first version stores 7."""
        for base in self.linears():
            rows, cols = self.shape(base)
            codes, stored = self.random.integers(0, 16, (cols, rows)), self.scales(cols // 32, rows)
            self.put(base, {".qweight": ("I32", np.ascontiguousarray(words(codes.T).T)),
                            ".qzeros": ("I32", words(np.full((cols // 32, rows), 7))), ".scales": ("BF16", stored),
                            ".g_idx": ("I32", (np.arange(cols) // 32).astype("<i4"))},
                     ((codes - 8) * np.repeat(to_f32(stored), 32, 0)).T)
        section = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
        tensors = {name: value for name, value in self.tensors.items() if not name.endswith("g_idx")}
        out = self.convert(self.source(section, tensors=tensors), "--scheme", "int4-g32")
        for base in [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]:
            np.testing.assert_array_equal(read_folder(out)[base + ".weight_scale"][1], tensors[base + ".scales"][1].T)
        tensors[KEY + ".qzeros"][1][0, 0] = 0x77777776
        damaged = self.source(section, "damaged", tensors)
        result = self.run_program("convert", damaged, self.folder / "o", "--scheme", "int4-g32")
        self.assert_refused(result, 3, KEY + ".weight: row 0 has a zero point of -1", "symmetric")

    def put_int8(self, dtype):
        for base in self.linears():
            rows, cols = self.shape(base)
            codes, stored = self.random.integers(-128, 128, (rows, cols)).astype(np.int8), self.scales(rows, 1)
            scale = ("BF16", stored) if dtype == "BF16" else ("F32", to_f32(stored))
            self.put(base, {".weight": ("I8", codes), ".weight_scale": scale}, codes * to_f32(stored))
        return self.source({"quant_method": "compressed-tensors", "format": "int-quantized"})

    def test_int8(self):
        self.check_same(self.convert(self.put_int8("F32"), "--scheme", "int8"))
        self.setUp()
        source = self.put_int8("BF16")
        out = self.convert(source, "--scheme", "int8")
        got = read_folder(out)
        for name, (dtype, values) in self.tensors.items():
            np.testing.assert_array_equal(got[name][1], to_f32(values) if name.endswith("_scale") else values, name)
        packed = self.convert(source, "--scheme", "w8a16")  # the same codes in words, and back
        self.check_same(self.convert(packed, "--scheme", "int8"), got)

    # --- A scale of the whole tensor, which what servers fuse must share

    def put_nvfp4(self, divides, scale_of):
        """`scale_of`: the global scale of a linear as it is stored."""
        names = (".weight_packed", ".weight_global_scale") if divides else (".weight", ".weight_scale_2")
        for base in self.linears():
            rows, cols = self.shape(base)
            packed = self.random.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
            scales, whole = self.random.integers(1, 127, (rows, cols // 16)).astype(np.uint8), np.float32(scale_of(base))
            factors = (e4m3(scales) / whole if divides else e4m3(scales) * whole).astype("<f4")
            self.put(base, {names[0]: ("U8", packed), ".weight_scale": ("F8_E4M3", scales),
                            names[1]: ("F32", np.array([whole]) if divides else np.array(whole))},
                     e2m1(nibbles_of(packed)) * np.repeat(factors, 16, 1))
        return self.source({"quant_method": "compressed-tensors" if divides else "modelopt"})

    def test_nvfp4_comes_out_as_it_went_in(self):
        source = self.put_nvfp4(True, lambda base: 2601.5 if "self_attn" in base else 1843.25)
        out = self.convert(source, "--scheme", "nvfp4")
        self.check_same(out)
        again = self.quantize("--scaling", "none", "--scheme", "nvfp4", "--memory", "66M", "--threads", "1", source=source, stats=None, ranks=3)
        self.assertEqual(hashes(again), hashes(out))

    def test_nvfp4_keeps_scales_of_activations(self):
        source = self.put_nvfp4(True, lambda base: 2601.5)
        stats = save_statistics(self.folder / "calib")
        static = self.quantize("--scaling", "none", "--scheme", "nvfp4", "--input-scales", "static", source=source, stats=stats)
        self.check_same(static)
        got = read_folder(static)
        plain = save(self.folder / "plain", Model().tensors)
        wanted = read_folder(self.quantize("--scaling", "none", "--scheme", "nvfp4", "--input-scales", "static", source=plain, stats=stats))
        inputs = [name for name in wanted if name.endswith(".input_global_scale")]
        self.assertEqual(len(inputs), len(self.values))
        for name in inputs:
            np.testing.assert_array_equal(got[name][1], wanted[name][1], name)

    def test_nvfp4_of_modelopt_keeps_codes_and_blocks_and_inverts_the_whole(self):
        source = self.put_nvfp4(False, lambda base: 0.00037)
        got = read_folder(self.quantize("--scaling", "none", "--scheme", "nvfp4", source=source, stats=None, ranks=2))
        for base in [name.removesuffix(".weight") for name in self.values]:
            np.testing.assert_array_equal(got[base + ".weight_packed"][1], self.tensors[base + ".weight"][1], base)
            np.testing.assert_array_equal(got[base + ".weight_scale"][1], self.tensors[base + ".weight_scale"][1], base)
            np.testing.assert_array_equal(got[base + ".weight_global_scale"][1], [np.float32(1) / np.float32(0.00037)], base)

    def check_requantized(self, source, scheme, fused):
        """What is fused is rounded as its decoded values would be, and the rest is carried over."""
        got = read_folder(self.quantize("--scaling", "none", "--scheme", scheme, source=source, stats=None, ranks=2))
        plain = {name: value for name, value in self.tensors.items() if "_proj." not in name}
        plain |= {name: ("F32", values) for name, values in self.values.items()}
        wanted = read_folder(self.quantize("--scaling", "none", "--scheme", scheme, source=save(self.folder / "plain", plain), stats=None))
        for name, (_, values) in wanted.items():
            if name.startswith(fused):
                np.testing.assert_array_equal(got[name][1], values, name)
            elif "_proj." in name:
                self.assertEqual(got[name][1].tobytes(), self.tensors[name][1].tobytes(), name)
        self.assertEqual(len({got[f"model.layers.1.self_attn.{part}_proj.weight{self.suffix}"][1].item() for part in "qkv"}), 1)

    FUSED = tuple(f"model.layers.1.self_attn.{part}_proj." for part in "qkv")

    def test_nvfp4_of_different_scales_in_what_is_fused_is_rounded_anew(self):
        self.suffix = "_global_scale"
        self.check_requantized(self.put_nvfp4(True, lambda base: 1300.75 if base == KEY else 2601.5), "nvfp4", self.FUSED)

    def put_fp8(self, scale_of):
        for base in self.linears():
            codes = self.random.integers(0, 127, self.shape(base)).astype(np.uint8)
            whole = np.float32(scale_of(base))
            self.put(base, {".weight": ("F8_E4M3", codes), ".weight_scale": ("F32", np.array([whole]))}, e4m3(codes) * whole)
        return self.source({"quant_method": "compressed-tensors", "format": "float-quantized"})

    def test_fp8_with_a_scale_of_the_tensor(self):
        self.suffix = "_scale"
        self.check_same(self.convert(self.put_fp8(lambda base: 0.00731), "--scheme", "fp8-tensor", "--layout", "compressed-tensors"))
        self.setUp()
        self.check_requantized(self.put_fp8(lambda base: 0.0146 if base == KEY else 0.00731), "fp8-tensor", self.FUSED)

    def test_a_code_that_is_no_number_is_refused_all_the_same(self):
        source = self.put_nvfp4(True, lambda base: 2601.5)
        self.tensors[KEY + ".weight_scale"][1][5, 1] = 0x7F
        source = self.source({"quant_method": "compressed-tensors"}, "damaged")
        result = self.run_program("convert", source, self.folder / "out", "--scheme", "nvfp4")
        self.assert_refused(result, 3, "k_proj.weight: row 5, column 16 is nan|a scale is nan")


if __name__ == "__main__":
    unittest.main()
