"""Checkpoints that are quantized already: what their codes and scales stand for, read to the bit."""
import json
import unittest

import numpy as np

from any_model import CONFIG, EXPERT, EXPERTS, HEADS, HIDDEN, LAYERS, Model, save_statistics, to_bf16, to_f32
from jobs import JobTest, read_folder, write_safetensors


def e4m3(codes):
    """OCP e4m3: sign, 4 exponent bits of bias 7, 3 mantissa bits; 0x7f and 0xff are NaN."""
    codes = codes.astype(np.int64)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return (np.where(codes & 128, -1, 1) * magnitude).astype("<f4")


def e2m1(nibbles):
    return np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6], "<f4")[nibbles]


def nibbles_of(packed):
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def spread(scales, shape, block):
    """Each scale over its block of rows and columns."""
    return np.repeat(np.repeat(scales, block[0], 0), block[1], 1)[:shape[0], :shape[1]]


class Sources(JobTest):
    def setUp(self):
        super().setUp()
        self.random = np.random.default_rng(11)
        self.wanted, self.tensors = {}, {}
        for name, (dtype, values) in Model().tensors.items():
            self.tensors[name] = (dtype, values)
            self.wanted[name] = to_f32(values)

    def linears(self, *parts):
        return [name for name in list(self.tensors) if name.endswith("_proj.weight") and any(part in name for part in parts or [""])]

    def fp8_codes(self, shape):
        codes = self.random.integers(0, 256, shape, dtype=np.uint8)
        codes[(codes & 127) == 127] = 0
        return codes

    def put_fp8(self, name, scales, dtype, block, suffix):
        """Random codes in place of a weight, with these scales as stored and as they count."""
        stored, values = scales
        shape = self.tensors.pop(name)[1].shape
        codes = self.fp8_codes(shape)
        self.tensors[name] = ("F8_E4M3", codes)
        self.tensors[name.removesuffix(".weight") + suffix] = (dtype, stored)
        self.wanted[name] = e4m3(codes) * spread(values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1), shape, block)

    def scales(self, shape, dtype):
        values = np.exp(self.random.normal(-6, 1, shape))
        if dtype == "F32":
            return values.astype("<f4"), values.astype("<f4")
        if dtype == "BF16":
            return to_bf16(values), to_f32(to_bf16(values))
        exponents = self.random.integers(110, 130, shape).astype(np.uint8)
        return exponents, (2.0 ** (exponents.astype(int) - 127)).astype("<f4")

    def save(self, section, tensors=None, name="model"):
        folder = self.folder / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": section}))
        write_safetensors(folder / "model.safetensors", tensors or self.tensors)
        return folder

    def check(self, section):
        source = self.save(section)
        out = self.quantize("--layout", "plain", "--scheme", "f32", "--scaling", "none", source=source, stats=None, ranks=2)
        got = read_folder(out)
        self.assertEqual(set(got), set(self.wanted))
        for name, values in self.wanted.items():
            np.testing.assert_array_equal(got[name][1] if got[name][0] == "F32" else to_f32(got[name][1]), values, name)
        self.assertNotIn("quantization_config", json.loads((out / "config.json").read_text()))
        return source

    FP8_BLOCK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [48, 40]}

    def put_blocks(self, dtype="F32", suffix=".weight_scale_inv", block=(48, 40)):
        for name in self.linears("self_attn", "experts.1"):
            rows, cols = self.tensors[name][1].shape
            self.put_fp8(name, self.scales((-(-rows // block[0]), -(-cols // block[1])), dtype), dtype, block, suffix)

    def test_fp8_blocks_with_ragged_edges(self):
        for dtype, suffix in (("F32", ".weight_scale_inv"), ("BF16", ".weight_scale"), ("F8_E8M0", ".scale"), ("U8", ".weight_scale_inv")):
            with self.subTest(dtype=dtype):
                self.setUp()
                self.put_blocks(dtype, suffix)
                source = self.check(self.FP8_BLOCK)
                scheme = self.quantize("--scaling", "none", source=source, stats=None)
                result = self.run_program("verify", scheme, "--against", source)
                self.assertEqual(result.returncode, 0, result.stdout)

    def test_fp8_per_channel_and_per_tensor(self):
        for name in self.linears("self_attn"):
            shape = self.tensors[name][1].shape
            if "q_proj" in name:
                self.put_fp8(name, self.scales((shape[0], 1), "BF16"), "BF16", (1, shape[1]), ".weight_scale")
            elif "k_proj" in name:
                self.put_fp8(name, self.scales((shape[0],), "F32"), "F32", (1, shape[1]), ".weight_scale")
            else:
                self.put_fp8(name, self.scales((1, 1), "F32"), "F32", shape, ".weight_scale")
                scale = name.removesuffix(".weight") + ".weight_scale"
                self.tensors[scale] = ("F32", self.tensors[scale][1].reshape(() if "o_proj" in name else (1,)))
                self.tensors[name.removesuffix(".weight") + ".input_scale"] = ("F32", np.float32([0.5]))
        self.check({"quant_method": "compressed-tensors", "format": "float-quantized"})

    def put_mxfp4(self, name, code_name=".weight", scale_name=".weight_scale"):
        rows, cols = self.tensors.pop(name)[1].shape
        packed = self.random.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
        scales = self.random.integers(100, 130, (rows, cols // 32)).astype(np.uint8)
        base = name.removesuffix(".weight")
        self.tensors[base + code_name] = ("U8", packed)
        self.tensors[base + scale_name] = ("U8", scales)
        self.wanted[name] = e2m1(nibbles_of(packed)) * np.repeat((2.0 ** (scales.astype(int) - 127)).astype("<f4"), 32, 1)

    def test_mxfp4_of_quark_and_compressed_tensors_is_carried_over(self):
        for code_name in (".weight", ".weight_packed"):
            with self.subTest(code_name=code_name):
                self.setUp()
                for name in self.linears():
                    self.put_mxfp4(name, code_name)
                source = self.check({"quant_method": "quark" if code_name == ".weight" else "compressed-tensors"})
                got = read_folder(self.quantize("--scaling", "none", source=source, stats=None))
                for name, (dtype, values) in self.tensors.items():
                    np.testing.assert_array_equal(got[name.replace("weight_packed", "weight")][1], values, name)

    def put_packed(self, name, bits, group, asymmetric, reordered=False):
        rows, cols = self.tensors.pop(name)[1].shape
        base, low, per_word = name.removesuffix(".weight"), -(1 << (bits - 1)), 32 // bits
        codes = self.random.integers(low, -low, (rows, cols))
        zeros = self.random.integers(low, -low, (rows, cols // group)) if asymmetric else np.zeros((rows, cols // group), int)

        def pack(values):  # along the last axis, code + 2^(bits - 1), the first in the lowest bits
            words = (values - low).reshape(*values.shape[:-1], -1, per_word).astype(np.uint32) << (bits * np.arange(per_word, dtype=np.uint32))
            return np.bitwise_or.reduce(words, -1).view("<i4")

        stored, scales = self.scales((rows, cols // group), "BF16")
        self.tensors[base + ".weight_packed"] = ("I32", pack(codes))
        self.tensors[base + ".weight_scale"] = ("BF16", stored)
        self.tensors[base + ".weight_shape"] = ("I64", np.array([rows, cols], "<i8"))
        if asymmetric:
            self.tensors[base + ".weight_zero_point"] = ("I32", np.ascontiguousarray(pack(zeros.T).T))
        groups = self.random.permutation(cols) // group if reordered else np.arange(cols) // group
        if reordered:
            self.tensors[base + ".weight_g_idx"] = ("I32", groups.astype("<i4"))
        self.wanted[name] = (codes - zeros[:, groups]).astype("<f4") * scales[:, groups]

    def test_packed_integers_of_compressed_tensors(self):
        for bits, group, asymmetric, reordered in ((4, 32, False, False), (4, 32, True, False), (8, 32, True, False), (4, 32, True, True)):
            with self.subTest(bits=bits, asymmetric=asymmetric, reordered=reordered):
                self.setUp()
                for name in self.linears():
                    self.put_packed(name, bits, group, asymmetric, reordered)
                self.check({"quant_method": "compressed-tensors", "format": "pack-quantized",
                            "config_groups": {"group_0": {"weights": {"num_bits": bits, "group_size": group}}}})

    @staticmethod
    def words(fields, bits, order=None):
        """Fields that count from 0 in words of 32 bits along the last axis, the first (of `order`) in the lowest bits."""
        per_word = 32 // bits
        split = fields.reshape(*fields.shape[:-1], -1, per_word)[..., order or range(per_word)].astype(np.uint32)
        return np.bitwise_or.reduce(split << (bits * np.arange(per_word, dtype=np.uint32)), -1).view("<i4")

    AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]

    def integers(self, name, bits, group):
        """[K, N] fields, [K / g, N] zero points and scales of a linear that is taken out; K, N."""
        rows, cols = self.tensors.pop(name)[1].shape
        scales = np.exp(self.random.normal(-6, 1, (cols // group, rows))).astype("<f2")
        top = 1 << bits
        return self.random.integers(0, top, (cols, rows)), self.random.integers(0, top, (cols // group, rows)), scales

    def put_awq(self, name):
        codes, zeros, scales = self.integers(name, 4, 32)
        base = name.removesuffix("weight")
        self.tensors[base + "qweight"] = ("I32", self.words(codes, 4, self.AWQ_ORDER))
        self.tensors[base + "qzeros"] = ("I32", self.words(zeros, 4, self.AWQ_ORDER))
        self.tensors[base + "scales"] = ("F16", scales)
        self.wanted[name] = ((codes - np.repeat(zeros, 32, 0)).astype("<f4") * np.repeat(scales, 32, 0).astype("<f4")).T

    AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}

    def test_autoawq(self):
        for name in self.linears():
            self.put_awq(name)
        source = self.check(self.AWQ)
        plain = self.save({}, {name: self.tensors.get(name, ("F32", values)) for name, values in self.wanted.items()}, "plain")
        stats = save_statistics(self.folder / "calib")
        got, wanted = (read_folder(self.quantize(source=folder, stats=stats, ranks=2)) for folder in (source, plain))
        for name in wanted:
            if name.endswith("_proj.weight"):
                np.testing.assert_array_equal(got[name][1], wanted[name][1], name)

    def put_gptq(self, name, bits, stored_less, reordered):
        codes, zeros, scales = self.integers(name, bits, 32)
        groups = self.random.permutation(len(codes)) // 32 if reordered else np.arange(len(codes)) // 32
        base = name.removesuffix("weight")
        self.tensors[base + "qweight"] = ("I32", np.ascontiguousarray(self.words(codes.T, bits).T))
        self.tensors[base + "qzeros"] = ("I32", self.words((zeros - stored_less) % (1 << bits), bits))
        self.tensors[base + "scales"] = ("F16", scales)
        self.tensors[base + "g_idx"] = ("I32", groups.astype("<i4"))
        self.wanted[name] = ((codes - zeros[groups]).astype("<f4") * scales[groups].astype("<f4")).T

    def test_gptq(self):
        for bits, form, reordered in ((4, "gptq", False), (4, "gptq_v2", True), (8, "gptq", True)):
            with self.subTest(bits=bits, form=form):
                self.setUp()
                for name in self.linears():
                    self.put_gptq(name, bits, form == "gptq", reordered)
                self.check({"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": reordered, "checkpoint_format": form})

    def test_quark_integers(self):
        for dtype in ("int4", "uint4"):
            with self.subTest(dtype=dtype):
                self.setUp()
                for name in self.linears():
                    fields, zeros, scales = self.integers(name, 4, 32)
                    zeros = zeros if dtype == "uint4" else 0 * zeros
                    values = fields if dtype == "uint4" else (fields ^ 8) - 8  # two's complement
                    base = name.removesuffix("weight")
                    self.tensors[name] = ("I32", self.words(fields, 4, self.AWQ_ORDER))
                    self.tensors[base + "weight_zero_point"] = ("I32", self.words(zeros, 4, self.AWQ_ORDER))
                    stored = to_bf16(scales.astype("<f4"))
                    self.tensors[base + "weight_scale"] = ("BF16", stored)
                    self.wanted[name] = ((values - np.repeat(zeros, 32, 0)).astype("<f4") * np.repeat(to_f32(stored), 32, 0)).T
                self.check({"quant_method": "quark", "export": {"pack_method": "reorder"},
                            "global_quant_config": {"weight": {"dtype": dtype, "qscheme": "per_group", "group_size": 32}}})

    def test_parts_of_integers_that_are_missing_or_do_not_fit_are_named(self):
        for name in self.linears():
            self.put_gptq(name, 4, True, False)
        base = "model.layers.1.self_attn.o_proj."
        gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
        groups = self.tensors[base + "g_idx"][1].copy()
        groups[7] = 4
        for section, part, value, words in (
                ({}, "qzeros", None, [base + "qweight: I32 are codes", "its zero point is not", "looked for " + base + "qzeros"]),
                ({}, "scales", None, ["looked for " + base + "scales"]),
                ({"desc_act": True}, "g_idx", None, ["looked for " + base + "g_idx"]),
                ({}, "g_idx", ("I32", groups), [base + "g_idx: column 7 is in group 4, but there are 4 groups"]),
                ({}, "scales", ("F16", np.ones((3, HIDDEN), "<f2")), [base + "qweight: codes I32", r"F16 \[3, 64\]"]),
                ({"group_size": 64}, None, None, ["groups of 32 columns, but config.json says 64"]),
                ({"bits": 3}, None, None, ["3 bits; 4 and 8 are known"]),
                ({"checkpoint_format": "marlin"}, None, None, ["checkpoint_format marlin"]),
                ({"quant_method": "aqlm"}, None, None, ['quant_method "aqlm"'])):
            with self.subTest(section=section, part=part):
                tensors = dict(self.tensors)
                if part:
                    tensors.pop(base + part)
                if value is not None:
                    tensors[base + part] = value
                source = self.save({**gptq, **section}, tensors, f"model{len(list(self.folder.iterdir()))}")
                result = self.run_program("convert", source, self.folder / "out", "--scheme", "bf16")
                self.assert_refused(result, 3, *words)

    def test_int8_per_channel(self):
        for name in self.linears("self_attn"):
            rows, cols = self.tensors[name][1].shape
            codes = self.random.integers(-128, 128, (rows, cols)).astype(np.int8)
            stored, scales = self.scales((rows, 1), "BF16")
            self.tensors[name] = ("I8", codes)
            self.tensors[name.removesuffix(".weight") + ".weight_scale"] = ("BF16", stored)
            self.wanted[name] = codes.astype("<f4") * scales
        self.check({"quant_method": "compressed-tensors", "format": "int-quantized"})

    def test_nvfp4_with_either_convention_of_the_global_scale(self):
        for code_name, global_name, value in ((".weight", ".weight_scale_2", np.float32(0.00037)),
                                              (".weight_packed", ".weight_global_scale", np.float32(2601.5))):
            with self.subTest(code_name=code_name):
                self.setUp()
                for name in self.linears():
                    rows, cols = self.tensors.pop(name)[1].shape
                    packed = self.random.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
                    scales = self.random.integers(1, 127, (rows, cols // 16)).astype(np.uint8)
                    base = name.removesuffix(".weight")
                    self.tensors[base + code_name] = ("U8", packed)
                    self.tensors[base + ".weight_scale"] = ("F8_E4M3", scales)
                    self.tensors[base + global_name] = ("F32", np.array([value]) if "packed" in code_name else np.array(value))
                    factors = e4m3(scales) / value if "packed" in code_name else e4m3(scales) * value
                    self.wanted[name] = e2m1(nibbles_of(packed)) * np.repeat(factors.astype("<f4"), 16, 1)
                self.check({"quant_method": "modelopt" if code_name == ".weight" else "compressed-tensors"})

    def gpt_oss(self):
        """The experts of a released gpt-oss: random blocks, and the [expert, out, in] that they stand for."""
        tensors = {name: value for name, value in self.tensors.items() if ".mlp." not in name and "_norm" not in name}
        experts = {}
        for layer in range(LAYERS):
            mlp = f"model.layers.{layer}.mlp."
            tensors[f"model.layers.{layer}.self_attn.sinks"] = ("BF16", to_bf16(np.ones(HEADS)))
            tensors[mlp + "router.weight"] = ("BF16", to_bf16(self.random.normal(0, 0.05, (EXPERTS, HIDDEN))))
            tensors[mlp + "router.bias"] = ("BF16", to_bf16(np.ones(EXPERTS)))
            for part, out, width in (("gate_up_proj", 2 * EXPERT, HIDDEN), ("down_proj", HIDDEN, EXPERT)):
                packed = self.random.integers(0, 256, (EXPERTS, out, width // 32, 16), dtype=np.uint8)
                scales = self.random.integers(100, 130, (EXPERTS, out, width // 32)).astype(np.uint8)
                name = f"{mlp}experts.{part}"
                tensors[name + "_blocks"], tensors[name + "_scales"] = ("U8", packed), ("U8", scales)
                tensors[name + "_bias"] = ("BF16", to_bf16(self.random.normal(0, 0.05, (EXPERTS, out))))
                values = e2m1(nibbles_of(packed)) * (2.0 ** (scales.astype(int) - 127)).astype("<f4")[..., None]
                experts[name] = values.reshape(EXPERTS, out, width)
        folder = self.folder / "gpt-oss"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({
            **CONFIG, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "intermediate_size": EXPERT, "num_local_experts": EXPERTS,
            "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}}))
        write_safetensors(folder / "model.safetensors", tensors)
        return folder, tensors, experts

    def test_gpt_oss_decoded_has_the_shape_of_its_bf16_release(self):
        source, tensors, experts = self.gpt_oss()
        for memory in ("256M", "65M"):  # the smaller one cuts within blocks
            got = read_folder(self.quantize("--layout", "plain", "--scheme", "f32", "--scaling", "none", "--memory", memory, source=source,
                                            stats=None, ranks=2))
            self.assertEqual(set(got), {name.removesuffix("_blocks") for name in tensors if not name.endswith("_scales")})
            for name, values in experts.items():
                np.testing.assert_array_equal(got[name][1], values.swapaxes(1, 2), name)
        result = self.run_program("convert", source, self.folder / "bf16", "--scheme", "bf16")
        self.assertEqual(result.returncode, 0, result.stderr)
        for name, values in experts.items():
            np.testing.assert_array_equal(to_f32(read_folder(self.folder / "bf16")[name][1]), values.swapaxes(1, 2), name)

    def test_gpt_oss_codes_are_carried_over_expert_by_expert(self):
        source, tensors, experts = self.gpt_oss()
        result = self.run_program("convert", source, self.folder / "out", "--scheme", "mxfp4", "--layout", "quark")
        self.assertEqual(result.returncode, 0, result.stderr)
        got = read_folder(self.folder / "out")
        for name in experts:
            stem, part = name.rsplit(".", 1)
            packed, scales = tensors[name + "_blocks"][1], tensors[name + "_scales"][1]
            for expert in range(EXPERTS):
                written = f"{stem}.{expert}.{part}.weight"
                np.testing.assert_array_equal(got[written][1], packed[expert].reshape(packed.shape[1], -1), written)
                np.testing.assert_array_equal(got[written + "_scale"][1], scales[expert], written)
        self.assertFalse([name for name in got if name.endswith("_blocks")])
        result = self.run_program("verify", self.folder / "out", "--against", source)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_a_scale_in_another_shard(self):
        self.put_blocks()
        section = self.save(self.FP8_BLOCK)
        (section / "model.safetensors").unlink()
        scales = {name: value for name, value in self.tensors.items() if name.endswith("_inv")}
        others = {name: value for name, value in self.tensors.items() if name not in scales}
        files = {"model-00001-of-00002.safetensors": others, "model-00002-of-00002.safetensors": scales}
        for file, tensors in files.items():
            write_safetensors(section / file, tensors)
        (section / "model.safetensors.index.json").write_text(json.dumps(
            {"metadata": {"total_size": 1}, "weight_map": {name: file for file, tensors in files.items() for name in tensors}}))
        got = read_folder(self.quantize("--layout", "plain", "--scheme", "f32", "--scaling", "none", source=section, stats=None))
        for name in self.linears("experts.1"):
            np.testing.assert_array_equal(got[name][1], self.wanted[name], name)

    def test_codes_without_their_scale_are_refused(self):
        self.put_blocks()
        name = "model.layers.1.self_attn.o_proj"
        for change, words in (
                (lambda t: t.pop(name + ".weight_scale_inv"), [name + ".weight: F8_E4M3 are codes", "scale is not in the checkpoint"]),
                (lambda t: t.update({name + ".weight_scale_inv": ("F32", np.ones((3, 3), "<f4"))}), [name + ".weight: codes", r"F32 \[3, 3\]"]),
                (lambda t: t.update({name + ".weight_scale_inv": ("F32", np.full((2, 4), np.nan, "<f4"))}), [name, "a scale is nan"]),
                (lambda t: t.update({"model.layers.1.x_blocks": t[name + ".weight"]}), ["x_blocks: F8_E4M3 are codes", "x_scales"]),
                (lambda t: t.update({"x.qweight": ("I32", np.ones(8, "<i4")), "x.scales": ("F16", np.ones((1, 8), "<f2")),
                                     "x.qzeros": ("I32", np.ones((1, 1), "<i4"))}), [r"x\.qweight: I32 \[8\]", "no matrix"]),
                (lambda t: t.pop(name + ".weight"), [name + ".weight_scale_inv: F32", "belongs to a quantized weight"])):
            tensors = dict(self.tensors)
            change(tensors)
            source = self.save(self.FP8_BLOCK, tensors, f"model{len(list(self.folder.iterdir()))}")
            result = self.run_program("quantize", source, self.folder / "out", "--scaling", "none")
            self.assert_refused(result, 3, *words)

    def test_scales_of_inputs_that_belong_to_the_function_are_refused(self):
        self.put_blocks()
        tensors = self.tensors | {"model.layers.1.self_attn.o_proj.pre_quant_scale": ("BF16", to_bf16(np.ones(HEADS * 32)))}
        source = self.save({"quant_method": "modelopt", "weight_block_size": [48, 40]}, tensors)
        result = self.run_program("convert", source, self.folder / "out", "--scheme", "bf16", "--allow-unknown")
        self.assert_refused(result, 3, r"o_proj.pre_quant_scale: BF16 \[128\] belongs to a quantized weight")

    def test_fp8_blocks_whose_scales_modelopt_divides(self):
        for name in self.linears("self_attn", "experts.1"):
            rows, cols = self.tensors[name][1].shape
            stored, scales = self.scales((-(-rows // 48), -(-cols // 40)), "F32")
            self.put_fp8(name, (stored[:, None, :, None], scales), "F32", (48, 40), ".weight_scale")
        self.check({"quant_method": "modelopt", "quant_algo": "fp8_pb_wo", "weight_block_size": [48, 40]})

    def test_a_code_that_is_no_number_is_found(self):
        self.put_blocks()
        name = "model.layers.0.mlp.experts.1.up_proj.weight"
        codes = self.tensors[name][1].copy()
        codes[17, 5] = 0x7f
        self.tensors[name] = ("F8_E4M3", codes)
        result = self.run_program("quantize", self.save(self.FP8_BLOCK), self.folder / "out", "--scaling", "none")
        self.assert_refused(result, 3, name + ": row 17, column 5 is nan")

    def test_folds_take_decoded_weights(self):
        self.put_blocks()
        source = self.save(self.FP8_BLOCK)
        plain = self.save({}, {name: ("F32", values) if name in self.linears("self_attn", "experts.1") else self.tensors[name]
                               for name, values in self.wanted.items()}, "plain")
        stats = save_statistics(self.folder / "calib")
        got, wanted = (read_folder(self.quantize(source=folder, stats=stats, ranks=2)) for folder in (source, plain))
        for name, (_, values) in wanted.items():
            np.testing.assert_array_equal(got[name][1], values, name)


if __name__ == "__main__":
    unittest.main()
