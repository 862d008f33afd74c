"""What targets hold beside codes that are rounded matrix by matrix: experts as one tensor, scales of the key-value cache, codes that are
carried over, F16; and the pass that measures."""
import json
import os
import re
import signal
import unittest

import numpy as np

import sources
from any_model import EXPERTS, HEAD, KV_HEADS, LAYERS, Model, recorded, save, save_statistics, to_bf16, to_f32
from jobs import PATIENCE, SLOW, JobTest, PreparedTest, hashes, make_drafter, ranks_of, read_folder, start_job, wait_for_journal, write_safetensors
from make_demo_drafter import write_torch_archive  # jobs put its folder into the path
from sources import e2m1, nibbles_of


class GptOss(JobTest):
    """Layout gpt-oss: a layer's experts stay one tensor of blocks and one of scales."""

    def setUp(self):
        super().setUp()
        self.random = np.random.default_rng(11)
        self.tensors = Model().tensors
        self.source, self.stored, self.experts = sources.Sources.gpt_oss(self)

    def convert(self, source, *options):
        out = self.folder / f"out{len(list(self.folder.iterdir()))}"
        result = self.run_program("convert", source, out, "--scheme", "mxfp4", "--layout", "gpt-oss", *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return out

    def test_codes_of_the_release_come_out_as_they_went_in(self):
        out = self.convert(self.source)
        got = read_folder(out)
        self.assertEqual(set(got), set(self.stored))
        for name, (dtype, values) in self.stored.items():
            self.assertEqual(got[name][0], dtype, name)
            np.testing.assert_array_equal(got[name][1], values, name)
        section = json.loads((out / "config.json").read_text())["quantization_config"]
        self.assertEqual(section, {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                                                              "lm_head"], "quant_method": "mxfp4"})
        result = self.run_program("verify", out, "--against", self.source)
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_plain_weights_are_rounded_as_in_quarks_layout(self):
        plain = self.folder / "plain"
        self.assertEqual(self.run_program("convert", self.source, plain, "--scheme", "bf16").returncode, 0)
        tensors = read_folder(plain)
        for name in self.experts:  # not codes times powers of two, so that rounding has something to do
            tensors[name] = ("BF16", to_bf16(self.random.normal(0, 0.05, tensors[name][1].shape)))
        write_safetensors(plain / "model.safetensors", tensors)
        got = read_folder(self.convert(plain))
        quark = self.folder / "quark"
        self.assertEqual(self.run_program("convert", plain, quark, "--scheme", "mxfp4", "--keep", "*self_attn*").returncode, 0)
        quark = read_folder(quark)
        for name in self.experts:
            codes, scales = got[name + "_blocks"][1], got[name + "_scales"][1]
            values = (e2m1(nibbles_of(codes)) * 2.0 ** (scales[..., None].astype(int) - 127)).reshape(*scales.shape[:2], -1).swapaxes(1, 2)
            wanted = to_f32(tensors[name][1])
            self.assertLess(np.linalg.norm(values - wanted), 0.15 * np.linalg.norm(wanted), name)
            stem, part = name.rsplit(".", 1)
            for expert in range(EXPERTS):
                written = f"{stem}.{expert}.{part}.weight"
                np.testing.assert_array_equal(codes[expert].reshape(codes.shape[1], -1), quark[written][1], written)
                np.testing.assert_array_equal(scales[expert], quark[written + "_scale"][1], written)

    def test_experts_that_are_kept_are_listed(self):
        out = self.convert(self.source, "--keep", "model.layers.0.mlp.experts.*")
        self.assertIn("model.layers.0.mlp.experts", json.loads((out / "config.json").read_text())["quantization_config"]["modules_to_not_convert"])
        got = read_folder(out)
        name = "model.layers.0.mlp.experts.down_proj"
        np.testing.assert_array_equal(to_f32(got[name][1]), self.experts[name].swapaxes(1, 2))
        self.assertIn(name.replace("0", "1") + "_blocks", got)

    def test_a_model_without_such_experts_is_refused(self):
        model = save(self.folder / "model", Model().tensors)
        result = self.run_program("convert", model, self.folder / "out", "--scheme", "mxfp4", "--layout", "gpt-oss")
        self.assert_refused(result, 2, "gpt-oss", "one tensor")


class KeyValueCache(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.tensors = Model().tensors
        cls.model = save(self.folder / "model", cls.tensors)
        cls.records = recorded()
        random = np.random.default_rng(4)
        for layer in range(LAYERS):
            for kind in "kv":
                values = np.exp(random.normal(0, 1, KV_HEADS * HEAD)).astype("<f4")
                cls.records[f"layers.{layer}.self_attn.{kind}_cache"] = {"absmean": values / 3, "absmax": values, "count": 4096}
        cls.stats = self.folder / "calib"
        write_torch_archive(self.folder / "calib.tp0.pt", cls.records)

    def test_scales_are_the_maxima_of_what_is_cached(self):
        for layout, key, value, shape in (("compressed-tensors", "k_scale", "v_scale", (1,)),
                                          ("quark", "k_proj.output_scale", "v_proj.output_scale", ())):
            for scaling in ("none", "awq-grid"):
                with self.subTest(layout=layout, scaling=scaling):
                    out = self.quantize("--scheme", "fp8-channel", "--layout", layout, "--kv-cache", "fp8", "--scaling", scaling,
                                        source=self.model, stats=self.stats, ranks=2)
                    got = read_folder(out)
                    folded = read_folder(self.quantize("--scheme", "f32", "--scales", out / "quantmill_scales.h5", source=self.model, stats=None))
                    for layer in range(LAYERS):
                        at = f"layers.{layer}.self_attn."
                        columns = folded[f"model.{at}o_proj.weight"][1] / to_f32(self.tensors[f"model.{at}o_proj.weight"][1])
                        s = np.median(columns, 0).reshape(KV_HEADS, -1, HEAD)[:, 0].reshape(-1)  # each value head is read by several
                        if scaling == "awq-grid" and layer == 0:
                            self.assertGreater(s.max() / s.min(), 1.5)  # or nothing is shown
                        for name, maxima in ((key, self.records[at + "k_cache"]["absmax"]), (value, self.records[at + "v_cache"]["absmax"] / s)):
                            self.assertEqual(got[f"model.{at}{name}"][1].shape, shape)
                            np.testing.assert_allclose(got[f"model.{at}{name}"][1].item(), maxima.max() / 448, rtol=3e-7)
                    result = self.run_program("verify", out, "--against", self.model)
                    self.assertEqual(result.returncode, 0, result.stdout)

    def test_the_config_says_so(self):
        options = ("--scheme", "fp8-channel", "--kv-cache", "fp8", "--scaling", "none")
        out = self.quantize(*options, source=self.model, stats=self.stats)
        scheme = json.loads((out / "config.json").read_text())["quantization_config"]["kv_cache_scheme"]
        self.assertEqual([scheme[key] for key in ("num_bits", "type", "strategy", "dynamic", "symmetric")], [8, "float", "tensor", False, True])
        out = self.quantize(*options, "--layout", "quark", source=self.model, stats=self.stats)
        section = json.loads((out / "config.json").read_text())["quantization_config"]
        self.assertEqual(section["export"]["kv_cache_group"], ["*k_proj", "*v_proj"])
        self.assertEqual(section["layer_quant_config"]["*k_proj"]["output_tensors"]["dtype"], "fp8_e4m3")
        self.assertEqual(section["layer_quant_config"], section["kv_cache_quant_config"])

    def test_the_plan_has_the_scales_of_the_job(self):
        for options in (("--scheme", "fp8-tensor"), ("--scheme", "nvfp4"), ("--scheme", "fp8-channel", "--kv-cache", "fp8")):
            with self.subTest(options=options):
                options += ("--scaling", "none", "--stats", self.stats)
                plan = json.loads(self.run_program("plan", self.model, self.folder / "out", *options, "--json").stdout)
                out = self.quantize(*options, source=self.model, stats=None)
                written = {file.name: file.stat().st_size for file in out.glob("*.safetensors")}
                self.assertEqual({file["name"]: file["bytes"] for file in plan["files"]}, written)

    def test_what_can_not_be_is_refused(self):
        few = {name: record for name, record in self.records.items() if name != "layers.1.self_attn.v_cache"}
        write_torch_archive(self.folder / "few.tp0.pt", few)
        options = ("--scheme", "fp8-channel", "--kv-cache", "fp8")
        result = self.run_program("plan", self.model, self.folder / "out", *options, "--stats", self.folder / "few")
        self.assert_refused(result, 3, "layers.1.self_attn.v_cache", "collect --kv-cache")
        result = self.run_program("convert", self.model, self.folder / "out", *options)
        self.assert_refused(result, 2, "--kv-cache need")
        result = self.run_program("plan", self.model, self.folder / "out", *options, "--scaling", "none")
        self.assert_refused(result, 2, "--kv-cache need")
        result = self.run_program("plan", self.model, self.folder / "out", "--scheme", "fp8-block", "--kv-cache", "fp8", "--scaling", "none")
        self.assert_refused(result, 2, "no place for kv_cache")

    def test_each_tensor_parallel_rank_records_its_own_heads(self):
        half = KV_HEADS * HEAD // 2
        for rank in range(2):
            parts = {}
            for name, record in self.records.items():
                row = name.endswith(("_cache", "o_proj", "down_proj"))
                parts[name] = {key: value[rank * len(value) // 2:(rank + 1) * len(value) // 2] if row and key != "count" else value
                               for key, value in record.items()}
            self.assertEqual(len(parts["layers.0.self_attn.k_cache"]["absmax"]), half)
            write_torch_archive(self.folder / f"split.tp{rank}.pt", parts)
        options = ("--scheme", "fp8-channel", "--kv-cache", "fp8", "--scaling", "none")
        whole, split = (read_folder(self.quantize(*options, source=self.model, stats=stats)) for stats in (self.stats, self.folder / "split"))
        for name in whole:
            np.testing.assert_array_equal(whole[name][1], split[name][1], name)


class Carried(JobTest):
    """Where nothing is scaled and the source has the target's codes, they are not rounded again."""

    linears, fp8_codes, scales, put_fp8, save = (getattr(sources.Sources, name) for name in ("linears", "fp8_codes", "scales", "put_fp8", "save"))

    def setUp(self):
        super().setUp()
        self.random = np.random.default_rng(12)
        self.tensors, self.wanted = Model().tensors, {}

    def check(self, source, scheme, suffix, scales):
        """`scales`: stored ones by the weight's name, as floats."""
        out = self.quantize("--scheme", scheme, "--scaling", "none", source=source, stats=None, ranks=2)
        got = read_folder(out)
        for name in self.linears():
            np.testing.assert_array_equal(got[name][1], self.tensors[name][1], name)
            np.testing.assert_array_equal(got[name + suffix][1].reshape(-1), scales[name].reshape(-1), name)
        result = self.run_program("verify", out, "--against", source)
        self.assertEqual(result.returncode, 0, result.stdout)

    def put(self, dtype, block_of):
        values = {}
        for name in self.linears():
            shape = self.tensors[name][1].shape
            block = block_of(shape)
            stored, values[name] = self.scales((-(-shape[0] // block[0]), -(-shape[1] // block[1])), dtype)
            self.put_fp8(name, (stored, values[name]), dtype, block, ".weight_scale")
        return values

    def test_fp8_blocks_and_channels(self):
        for scheme, suffix, block_of in (("fp8-block", "_scale_inv", lambda shape: (128, 128)), ("fp8-channel", "_scale", lambda shape: (1, shape[1]))):
            for dtype in ("F32", "BF16"):
                with self.subTest(scheme=scheme, dtype=dtype):
                    self.tensors = Model().tensors
                    scales = self.put(dtype, block_of)
                    section = {"quant_method": "fp8", "weight_block_size": [128, 128]} if scheme == "fp8-block" else {"quant_method": "compressed-tensors"}
                    self.check(self.save(section, name=f"model{len(list(self.folder.iterdir()))}"), scheme, suffix, scales)

    def test_a_code_that_is_no_number_is_refused_all_the_same(self):
        self.put("F32", lambda shape: (128, 128))
        self.tensors["model.layers.1.self_attn.o_proj.weight"][1][5, 7] = 0x7F
        source = self.save({"quant_method": "fp8", "weight_block_size": [128, 128]})
        result = self.run_program("convert", source, self.folder / "out", "--scheme", "fp8-block")
        self.assert_refused(result, 3, "o_proj.weight: row 5, column 7 is nan")

    def test_scaled_weights_are_rounded_anew(self):
        self.put("F32", lambda shape: (128, 128))
        source = self.save({"quant_method": "fp8", "weight_block_size": [128, 128]})
        scales = self.quantize("--scaling", "awq-grid", source=source, stats=save_statistics(self.folder / "calib")) / "quantmill_scales.h5"
        got = read_folder(self.quantize("--scheme", "fp8-block", "--scales", scales, source=source, stats=None))
        name = "model.layers.1.self_attn.q_proj.weight"
        self.assertFalse(np.array_equal(got[name][1], self.tensors[name][1]))


class HalfPrecision(JobTest):
    def test_f16_holds_what_bf16_did(self):
        model = save(self.folder / "model", Model().tensors)
        out = self.quantize("--scheme", "f16", "--scaling", "none", source=model, stats=None)
        for name, (dtype, _) in read_folder(out).items():
            self.assertEqual(dtype, "F16" if name.endswith("_proj.weight") else dtype, name)
        name = "model.layers.0.mlp.experts.1.up_proj.weight"
        np.testing.assert_array_equal(read_folder(out)[name][1].view("<f2").astype("<f4"),
                                      to_f32(Model().tensors[name][1]).astype("<f2").astype("<f4"))
        self.assertEqual(json.loads((out / "config.json").read_text())["dtype"], "float16")


class MeasuringIsResumed(PreparedTest):
    def prepare(self):
        type(self).model, type(self).stats = make_drafter(self.folder, 0.02)

    def test_a_job_that_was_stopped_while_it_measured(self):
        options = ("--scheme", "fp8-tensor", "--scaling", "none", "--input-scales", "none")
        wanted = hashes(self.quantize(*options, source=self.model, stats=None))
        out = self.folder / "out"
        job = start_job(2, self.model, out, *options, *SLOW)
        wait_for_journal(out)
        os.kill(ranks_of(job)[0], signal.SIGTERM)
        job.communicate(timeout=120 * PATIENCE)
        self.assertEqual(job.returncode, 75)
        result = self.run_program("quantize", self.model, out, *options, "--resume", ranks=3)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(re.search(r"resumed: .*, [1-9]\d* measured", result.stderr), result.stderr)
        self.assertEqual(hashes(out), wanted)


if __name__ == "__main__":
    unittest.main()
