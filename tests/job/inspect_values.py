"""quantmill inspect shows what a file holds: the expected values are decoded here, with numpy and the tables of the formats."""
import json
import math
import struct
import unittest

import numpy as np

from jobs import CALIB, GOLDEN, SHORT_SEARCH, TINY, JobTest, read_safetensors

PACKED = GOLDEN / "seed" / "as-written"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)  # OCP MX 1.0, 5.3.3
DOWN = "layers.0.mlp.down_proj.weight"


def decode_mxfp4(codes, scales):
    """[N, K/2] and [N, K/32] bytes -> [N, K] float32; the lower nibble comes first."""
    elements = E2M1[np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)]
    return np.ldexp(elements, np.repeat(scales.astype(np.int32) - 127, 32, axis=1)).astype(np.float32)


def write_one(path, dtype, shape, data):
    header = json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


class Inspect(JobTest):
    def inspect(self, *args):
        result = self.run_program("inspect", *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def inspect_json(self, *args):
        return json.loads(self.inspect(*args, "--json"))

    def assert_same_bits(self, shown, wanted):
        np.testing.assert_array_equal(np.array(shown["values"], np.float32).view(np.uint32),
                                      wanted.astype(np.float32).view(np.uint32))

    def test_every_packed_weight_is_decoded_to_the_bit(self):
        tensors = read_safetensors(PACKED / "model.safetensors")
        weights = [name for name in tensors if name + "_scale" in tensors]
        self.assertEqual(len(weights), 15)
        for name in weights:
            shown = self.inspect_json(PACKED, "--tensor", name)
            wanted = decode_mxfp4(tensors[name][1], tensors[name + "_scale"][1])
            self.assertEqual(shown["dtype"], "MXFP4")
            self.assertEqual(shown["shape"], list(wanted.shape))
            self.assert_same_bits(shown, wanted)

    def test_bf16_is_decoded_to_the_bit(self):
        wanted = (read_safetensors(TINY / "model.safetensors")["fc.weight"][1].astype(np.uint32) << 16).view(np.float32)
        self.assert_same_bits(self.inspect_json(TINY / "sharded", "--tensor", "fc.weight"), wanted)

    def test_rows_are_chosen_from_all(self):
        tensors = read_safetensors(PACKED / "model.safetensors")
        wanted = decode_mxfp4(tensors[DOWN][1], tensors[DOWN + "_scale"][1])
        for text, begin, end in (("7:9", 7, 9), ("94:", 94, 96), (":2", 0, 2), ("5", 5, 6)):
            shown = self.inspect_json(PACKED, "--tensor", DOWN, "--rows", text)
            self.assertEqual(shown["rows"], [begin, end])
            self.assert_same_bits(shown, wanted[begin:end])

    def test_statistics_are_those_of_the_whole_tensor(self):
        tensors = read_safetensors(PACKED / "model.safetensors")
        wanted = decode_mxfp4(tensors[DOWN][1], tensors[DOWN + "_scale"][1]).astype(np.float64)
        shown = self.inspect_json(PACKED, "--tensor", DOWN, "--rows", "3")
        self.assertEqual((shown["min"], shown["max"]), (wanted.min(), wanted.max()))
        self.assertTrue(math.isclose(shown["mean"], wanted.mean(), rel_tol=1e-12))
        self.assertTrue(math.isclose(shown["std"], wanted.std(), rel_tol=1e-12))

    def test_statistics_of_several_pieces_far_from_zero(self):
        values = (1e6 + np.random.default_rng(0).normal(size=(3000, 1000))).astype(np.float32)
        path = write_one(self.folder / "x.safetensors", "F32", [3000, 1000], values.tobytes())
        shown = self.inspect_json(path, "--tensor", "x", "--rows", "2999")
        self.assertTrue(math.isclose(shown["mean"], values.mean(dtype=np.float64), rel_tol=1e-12))
        self.assertTrue(math.isclose(shown["std"], values.astype(np.float64).std(), rel_tol=1e-9))
        self.assert_same_bits(shown, values[2999:])

    def test_values_that_are_not_finite_are_counted(self):
        values = np.array([[1, np.nan, -np.inf, 3]], np.float32)
        path = write_one(self.folder / "x.safetensors", "F32", [1, 4], values.tobytes())
        shown = self.inspect_json(path, "--tensor", "x")
        self.assertEqual(shown["values"], [[1, "NaN", "-Infinity", 3]])
        self.assertEqual((shown["nan"], shown["infinite"], shown["mean"]), (1, 1, 2))
        self.assertIn("NOT FINITE: 1 NaN, 1 infinite", self.inspect(path, "--tensor", "x"))

    def test_integers_doubles_scalars_and_empty_tensors(self):
        for dtype, shape, data, wanted in (("I64", [2], struct.pack("<2q", -5, 2**40), [[-5, 2**40]]),
                                           ("F64", [1], struct.pack("<d", 0.1), [[0.1]]),
                                           ("F16", [], struct.pack("<e", -0.5), [[-0.5]]),
                                           ("BOOL", [2, 1], b"\x01\x00", [[1], [0]]),
                                           ("F32", [0, 4], b"", []),
                                           ("F32", [4, 0], b"", [])):
            path = write_one(self.folder / "x.safetensors", dtype, shape, data)
            self.assertEqual(self.inspect_json(path, "--tensor", "x")["values"], wanted)
            self.assertIn(dtype, self.inspect(path, "--tensor", "x"))

    def test_a_scale_of_another_shape_makes_no_packed_weight(self):
        header = json.dumps({"x": {"dtype": "U8", "shape": [1, 16], "data_offsets": [0, 16]},
                             "x_scale": {"dtype": "U8", "shape": [2], "data_offsets": [16, 18]}}).encode()
        path = self.folder / "x.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(18)))
        self.assertEqual(self.inspect_json(path, "--tensor", "x")["values"], [list(range(16))])

    def test_the_table_lists_every_tensor(self):
        shown = self.inspect_json(PACKED)
        tensors = read_safetensors(PACKED / "model.safetensors")
        self.assertEqual({tensor["name"]: (tensor["dtype"], tensor["shape"]) for tensor in shown["tensors"]},
                         {name: (dtype, list(data.shape)) for name, (dtype, data) in tensors.items()})
        self.assertEqual(shown["totals"], {"BF16": {"tensors": 21, "bytes": 70016}, "U8": {"tensors": 30, "bytes": 132192}})
        self.assertEqual(shown["quantization_config"], json.loads((PACKED / "config.json").read_text())["quantization_config"])

    def test_the_text_has_totals_and_the_configuration(self):
        text = self.inspect(PACKED)
        self.assertIn("51 tensors, 202,208 bytes, 1 file\n", text)
        self.assertRegex(text, r"U8 +30 tensors +132,192 bytes")
        self.assertIn("global_quant_config.weight.dtype = fp4", text)
        text = self.inspect(TINY / "sharded")
        self.assertIn("36 tensors, 567,680 bytes, 3 files\n", text)
        self.assertNotIn("quantization_config", text)

    def test_the_text_shows_whole_rows_when_asked(self):
        text = self.inspect(PACKED, "--tensor", DOWN, "--rows", "95")
        tensors = read_safetensors(PACKED / "model.safetensors")
        wanted = decode_mxfp4(tensors[DOWN][1], tensors[DOWN + "_scale"][1])[95]
        line = [line for line in text.splitlines() if line.startswith("  row 95: ")]
        np.testing.assert_array_equal(np.array(line[0].split()[2:], np.float32), wanted)

    def test_refusals(self):
        inspect = lambda *args: self.run_program("inspect", *args)
        self.assert_refused(inspect(self.folder / "none"), 3, "does not exist")
        self.assert_refused(inspect(PACKED, "--tensor", "down_proj"), 3, "no tensor 'down_proj'", DOWN)
        self.assert_refused(inspect(PACKED, "--tensor", "zzz"), 3, "no tensor 'zzz'", "run without --tensor")
        for rows in ("96", "90:97", "5:5", "9:3", "-1:", "a:b", "1:2:3"):
            self.assert_refused(inspect(PACKED, "--tensor", DOWN, "--rows=" + rows), 2, "--rows", rows)
        self.assert_refused(inspect(PACKED, "--rows", "1:2"), 2, "--tensor")
        path = write_one(self.folder / "x.safetensors", "F8_E4M3", [1], b"\0")
        self.assert_refused(inspect(path, "--tensor", "x"), 3, "F8_E4M3")
        path.write_bytes(path.read_bytes()[:-1])
        self.assert_refused(inspect(path), 3, "x.safetensors", "cut short")


class Stored(JobTest):
    def inspect(self, *args, status=0):
        result = self.run_program("inspect", *args)
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stdout

    def test_blocks_are_codes_and_scales_as_they_are_stored(self):
        tensors = read_safetensors(PACKED / "model.safetensors")
        codes, scales = tensors[DOWN][1], tensors[DOWN + "_scale"][1]
        shown = json.loads(self.inspect(PACKED, "--tensor", DOWN, "--rows", "3:5", "--blocks", "--json"))["blocks"]
        per_row = scales.shape[1]
        self.assertEqual(len(shown), 2 * per_row)
        for index, block in enumerate(shown):
            row, group = 3 + index // per_row, index % per_row
            self.assertEqual((block["row"], block["columns"], block["zero_point"]), (row, [32 * group, 32 * group + 32], None))
            self.assertEqual(block["scale"], 2.0 ** (int(scales[row, group]) - 127))
            packed = codes[row, 16 * group:16 * group + 16]
            self.assertEqual(block["codes"], E2M1[np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)].tolist())
        text = self.inspect(PACKED, "--tensor", DOWN, "--rows", "3", "--blocks")
        self.assertIn(f"row 3, columns 0 to 31: scale {2.0 ** (int(scales[3, 0]) - 127):.9g}\n", text)

    def test_what_has_no_blocks_is_said(self):
        self.assert_refused(self.run_program("inspect", TINY, "--tensor", "fc.weight", "--blocks"), 2, "--blocks", "BF16")

    def test_the_histogram_counts_every_value_once(self):
        values = (read_safetensors(TINY / "model.safetensors")["fc.weight"][1].astype(np.uint32) << 16).view(np.float32)
        shown = json.loads(self.inspect(TINY, "--tensor", "fc.weight", "--json"))["histogram"]
        wanted, _ = np.histogram(values.astype(np.float64), bins=32)
        self.assertEqual(shown, wanted.tolist())
        text = self.inspect(TINY, "--tensor", "fc.weight", "--histogram")
        self.assertEqual([int(line.split("…")[1].split()[0]) for line in text.splitlines() if "…" in line], shown)

    def test_manifest_scales_and_statistics_are_shown(self):
        out = self.quantize(*SHORT_SEARCH)
        manifest = json.loads((out / "quantmill_manifest.json").read_text())
        text = self.inspect(out / "quantmill_manifest.json")
        for file in manifest["files"]:
            self.assertIn(file["xxh128"], text)
        self.assertIn("scheme = \"mxfp4\"", text)
        groups = {group["name"]: group for group in manifest["fold_groups"]}
        scales = json.loads(self.inspect(out / "quantmill_scales.h5", "--json"))
        self.assertEqual(scales.keys(), groups.keys())
        for name, group in scales.items():
            self.assertEqual((len(group["s"]), group["errors"]), (groups[name]["channels"], groups[name]["errors"]))
        self.assertRegex(self.inspect(out / "quantmill_scales.h5"), r"\nfc +288 +- +1 +1  not scaled: its input")
        self.run_program("stats", "import", CALIB, "-o", self.folder / "calib.h5")
        self.assertRegex(self.inspect(self.folder / "calib.h5"), r"\nfc +288 +3451 ")
        self.assert_refused(self.run_program("inspect", out / "config.json"), 3, "quantmill_manifest.json")


if __name__ == "__main__":
    unittest.main()
