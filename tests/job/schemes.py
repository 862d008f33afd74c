"""Every scheme in every layout that takes it: what is written is what the numbers say, and reads back."""
import json
import unittest

import numpy as np

from any_model import Model, recorded_maxima, save, save_statistics, to_f32
from jobs import PreparedTest, hashes, read_folder
from sources import e2m1, e4m3, nibbles_of, spread

LAYOUTS = {"mxfp4": ["quark", "compressed-tensors"], "mxfp6-e2m3": ["quark"], "mxfp6-e3m2": ["quark"], "mxfp8": ["compressed-tensors"],
           "nvfp4": ["compressed-tensors"], "fp8-tensor": ["compressed-tensors", "quark"], "fp8-channel": ["compressed-tensors", "quark"],
           "fp8-block": ["fp8", "compressed-tensors", "quark"], "int8": ["compressed-tensors"], "w8a16": ["compressed-tensors"],
           "int4-g32": ["compressed-tensors", "quark"], "int4-asym-g32": ["compressed-tensors", "quark"]}
# Root mean square of the rounding error of a normal weight, relative; measured once, as the formats allow.
ERRORS = {"mxfp4": 0.15, "mxfp6-e2m3": 0.04, "mxfp6-e3m2": 0.06, "mxfp8": 0.04, "nvfp4": 0.11, "fp8-tensor": 0.03, "fp8-channel": 0.03,
          "fp8-block": 0.03, "int8": 0.01, "w8a16": 0.01, "int4-g32": 0.11, "int4-asym-g32": 0.1}
ELEMENTS = {"mxfp6-e2m3": (2, 3, 1), "mxfp6-e3m2": (3, 2, 3)}  # bits of exponent and mantissa, and bias
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight columns each nibble of a word holds, as Quark's "reorder"


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


def unpacked(words, bits):
    """Fields of 32-bit words, the lowest first, along the last axis."""
    fields = words.view("<u4")[..., None] >> (bits * np.arange(32 // bits, dtype=np.uint32)) & (1 << bits) - 1
    return fields.reshape(*words.shape[:-1], -1).astype(int)


def packed_integers(tensors, base):
    """compressed-tensors: codes along rows, zero points down columns, both counted from the lowest."""
    rows, cols = tensors[base + ".weight_shape"][1]
    words = tensors[base + ".weight_packed"][1]
    bits = 32 * words.shape[1] // cols
    scales = to_f32(tensors[base + ".weight_scale"][1]).astype(float)
    zeros = np.full(scales.shape, 1 << (bits - 1))
    if base + ".weight_zero_point" in tensors:
        zeros = unpacked(tensors[base + ".weight_zero_point"][1].T, bits).T[:rows]
    width = cols // scales.shape[1]
    return (unpacked(words, bits)[:, :cols] - np.repeat(zeros, width, 1)) * np.repeat(scales, width, 1)


def quark_integers(tensors, base):
    """Quark: [in, out], a word holding eight outputs in AWQ's order; int4 in two's complement, uint4 from 0."""
    nibbles = [unpacked(tensors[base + suffix][1], 4).reshape(-1, tensors[base + suffix][1].shape[1], 8) for suffix in (".weight", ".weight_zero_point")]
    codes, zeros = (part[..., np.argsort(AWQ_ORDER)].reshape(len(part), -1) for part in nibbles)
    if "asym" not in tensors["scheme"]:
        codes, zeros = ((part ^ 8) - 8 for part in (codes, zeros))
    scales = to_f32(tensors[base + ".weight_scale"][1]).astype(float)
    rows, width = scales.shape[1], len(codes) // len(scales)
    return ((codes[:, :rows] - np.repeat(zeros[:, :rows], width, 0)) * np.repeat(scales, width, 0)).T


def decoded(tensors, name):
    """What a stored weight stands for, by the definition of its layout. tensors["scheme"]: the scheme's name."""
    base = name.removesuffix(".weight")
    scale = base + ".weight_scale"
    if base + ".weight_shape" in tensors:
        return packed_integers(tensors, base)
    dtype, codes = tensors.get(name) or tensors[base + ".weight_packed"]
    if dtype == "I32":
        return quark_integers(tensors, base)
    if base + ".weight_global_scale" in tensors:
        factors = e4m3(tensors[scale][1]) / tensors[base + ".weight_global_scale"][1]  # float32, as its readers divide
        return e2m1(nibbles_of(codes)).astype(float) * np.repeat(factors.astype("<f4"), 16, 1)
    if scale in tensors and tensors[scale][0] == "U8":
        exponents = tensors[scale][1].astype(int) - 127
        if dtype == "F8_E4M3":
            values = e4m3(codes).astype(float)
        elif codes.shape[1] == 16 * exponents.shape[1]:
            values = e2m1(nibbles_of(codes)).astype(float)
        else:
            values = small_float(six_bits(codes), *ELEMENTS[tensors["scheme"]])
        return values * np.repeat(2.0 ** exponents, 32, 1)
    scales = tensors[name + "_scale_inv"][1] if name + "_scale_inv" in tensors else tensors[scale][1]
    values = codes.astype(np.int8).astype(float) if dtype == "I8" else e4m3(codes).astype(float)
    if scales.size == 1:
        return values * scales.reshape(())
    scales = scales.reshape(scales.shape[0], -1)
    block = (1, codes.shape[1]) if scales.shape[1] == 1 and scales.shape[0] == codes.shape[0] else (128, 128)
    return values * spread(scales.astype(float), codes.shape, block)


def read_target(folder, scheme):
    return read_folder(folder) | {"scheme": scheme}


class Schemes(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.tensors = Model().tensors
        cls.model = save(self.folder / "model", cls.tensors)
        cls.stats = save_statistics(self.folder / "calib")
        cls.maxima = recorded_maxima()

    def test_values_are_within_the_formats_error_and_files_verify(self):
        for scheme, layouts in LAYOUTS.items():
            for layout in layouts:
                with self.subTest(scheme=scheme, layout=layout):
                    out = self.quantize("--scheme", scheme, "--layout", layout, "--scaling", "none", source=self.model, stats=None, ranks=2)
                    tensors = read_target(out, scheme)
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
                    tensors = read_target(out, scheme)
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
        for scheme, layout in (("fp8-block", "fp8"), ("mxfp6-e2m3", "quark"), ("nvfp4", "compressed-tensors"), ("fp8-tensor", "quark"),
                               ("int4-asym-g32", "compressed-tensors"), ("int4-asym-g32", "quark")):
            with self.subTest(scheme=scheme, layout=layout):
                asked = ("--scheme", scheme, "--layout", layout)
                wanted = hashes(self.quantize(*asked, source=self.model, stats=self.stats))
                for ranks, options in ((3, []), (2, ["--ranks-per-node", "1", "--threads", "3"]), (0, ["--memory", "66M", "--backend", "reference"])):
                    self.assertEqual(hashes(self.quantize(*asked, *options, source=self.model, stats=self.stats, ranks=ranks)), wanted)

    def test_convert_is_quantize_without_scales(self):
        wanted = self.quantize("--scheme", "fp8-block", "--scaling", "none", source=self.model, stats=None)
        out = self.folder / "converted"
        self.assertEqual(self.run_program("convert", self.model, out, "--scheme", "fp8-block").returncode, 0)
        self.assertEqual(hashes(out), hashes(wanted))
        self.assert_refused(self.run_program("convert", self.model, self.folder / "o", "--stats", self.stats), 2, "convert scales nothing")

    def test_a_layout_that_lacks_the_scheme_is_refused(self):
        result = self.run_program("plan", self.model, self.folder / "out", "--scheme", "int8", "--layout", "quark", "--scaling", "none")
        self.assert_refused(result, 2, '"quark" takes the schemes mxfp4', '"int8" the layouts compressed-tensors')
        for scheme in ("nvfp4", "mxfp8"):  # see docs/formats.md
            result = self.run_program("plan", self.model, self.folder / "out", "--scheme", scheme, "--layout", "quark", "--scaling", "none")
            self.assert_refused(result, 2, '"quark" takes the schemes mxfp4', f'"{scheme}" the layouts compressed-tensors')
        result = self.run_program("plan", self.model, self.folder / "out", "--scheme", "int4-g128", "--scaling", "none")
        self.assert_refused(result, 3, "64 columns are not a multiple of the 128 that share a scale in int4-g128", "--keep")

    def test_what_servers_fuse_has_one_scale_of_the_tensor(self):
        for scheme, suffix in (("nvfp4", "_global_scale"), ("fp8-tensor", "_scale")):
            tensors = read_folder(self.quantize("--scheme", scheme, source=self.model, stats=self.stats, ranks=2))
            at = "model.layers.1."
            expert = at + "mlp.experts.{}.{}_proj.weight" + suffix
            scales = {name: float(value.reshape(())) for name, (_, value) in tensors.items() if name.endswith(".weight" + suffix)}
            self.assertEqual(len({scales[f"{at}self_attn.{part}_proj.weight{suffix}"] for part in "qkv"}), 1)
            self.assertEqual(scales[expert.format(2, "gate")], scales[expert.format(2, "up")])
            self.assertEqual(len({scales[expert.format(index, part)] for index in range(3) for part in ("gate", "down")}), 6)

    def test_a_scale_of_the_tensor_is_that_of_its_largest_weight(self):
        tensors = read_folder(self.quantize("--scheme", "nvfp4", "--scaling", "none", source=self.model, stats=None))
        tensors |= read_folder(self.quantize("--scheme", "fp8-tensor", "--scaling", "none", "--layout", "quark", source=self.model, stats=None))
        name = "model.layers.0.mlp.experts.1.{}_proj.weight"
        largest = max(np.abs(to_f32(self.tensors[name.format(part)][1])).max() for part in ("gate", "up"))
        np.testing.assert_array_equal(tensors[name.format("up") + "_global_scale"][1], [np.float32(2688) / largest])
        np.testing.assert_array_equal(tensors[name.format("up") + "_scale"][1], largest / np.float32(448))

    def test_scales_of_activations_are_the_recorded_maxima_divided_by_s(self):
        for scheme, suffix, wanted in (("nvfp4", ".input_global_scale", lambda amax: np.float32(2688) / amax),
                                       ("fp8-tensor", ".input_scale", lambda amax: amax / np.float32(448))):
            for scaling in ("none", "awq-grid"):
                out = self.quantize("--scheme", scheme, "--scaling", scaling, source=self.model, stats=self.stats, ranks=2)
                written = read_folder(out)
                folded = read_folder(self.quantize("--scheme", "f32", "--scales", out / "quantmill_scales.h5", source=self.model, stats=None))
                for module, record, norm in (("self_attn.v_proj", "self_attn.q_proj", "input_layernorm"),
                                             ("mlp.experts.1.up_proj", "mlp.gate", "post_attention_layernorm"),
                                             ("mlp.experts.2.down_proj", "mlp.experts.2.down_proj", None)):
                    name = f"model.layers.1.{module}"
                    if norm:  # what it was really divided by
                        before, after = (to_f32(tensors[f"model.layers.1.{norm}.weight"][1]).astype(float) for tensors in (self.tensors, written))
                        s = before / after
                    else:  # its columns were multiplied by it
                        s = np.median(folded[name + ".weight"][1].astype(float) / to_f32(self.tensors[name + ".weight"][1]), 0)
                    amax = (self.maxima[f"layers.1.{record}"].astype(float) / s).max()
                    np.testing.assert_allclose(written[name + suffix][1].reshape(-1), [wanted(np.float32(amax))], rtol=3e-7, err_msg=name)
                section = json.loads((out / "config.json").read_text())["quantization_config"]
                self.assertIsNotNone(section["config_groups"]["group_0"]["input_activations"])
                self.assertEqual(json.loads((out / "quantmill_manifest.json").read_text())["recipe"]["input_scales"], "static")
                result = self.run_program("verify", out, "--against", self.model)
                self.assertEqual(result.returncode, 0, result.stdout)

    def test_an_expert_without_maxima_takes_its_peers(self):
        few = save_statistics(self.folder / "few", unseen="layers.1.mlp.experts.2.down_proj")
        out = read_folder(self.quantize("--scheme", "fp8-tensor", "--scaling", "none", source=self.model, stats=few))
        name = "model.layers.1.mlp.experts.{}.down_proj.input_scale"
        self.assertEqual(*(value for value in (out[name.format(2)][1].item(), max(out[name.format(index)][1].item() for index in (0, 1)))))

    def test_without_maxima_activations_are_quantized_as_they_come(self):
        bare = save_statistics(self.folder / "bare", maxima=False)
        refused = self.run_program("plan", self.model, self.folder / "out", "--scheme", "nvfp4", "--stats", bare, "--input-scales", "static")
        self.assert_refused(refused, 3, "no maxima", "--input-scales none")
        refused = self.run_program("plan", self.model, self.folder / "out", "--scheme", "mxfp4", "--stats", bare, "--input-scales", "static")
        self.assert_refused(refused, 2, "mxfp4", "input_scales")
        for options, stats in (([], bare), (["--input-scales", "none"], self.stats)):
            out = self.quantize("--scheme", "nvfp4", *options, source=self.model, stats=stats)
            self.assertFalse([name for name in read_folder(out) if "input" in name and "layernorm" not in name])
            group = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
            self.assertIsNone(group["input_activations"])
            out = self.quantize("--scheme", "fp8-tensor", *options, source=self.model, stats=stats)
            group = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
            self.assertEqual((group["input_activations"]["strategy"], group["input_activations"]["dynamic"]), ("token", True))

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
