"""Layout qwix: parameters of a JAX model with the values that the source's codes stand for, to the bit."""
import json
import os
import re
import unittest

import numpy as np

from coded_models import EXPERT, HEAD, HEADS, HIDDEN, INNER, KV_HEADS, CodedModel
from coded_weights import CONFIGS, e4m3, to_f32
from jobs import JobTest, hashes, read_folder

# What Orbax reads; a file with any other type is refused as a whole.
READABLE = {"BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64", "F16", "F32", "F64", "BF16", "F8_E5M2", "F8_E4M3"}
TILES = {"fp8-block": 128, "fp8-block-bf16": 128, "fp8-channel": 0, "int8": 0, "int4": 32, "int4-asymmetric": 32, "mxfp4": 32, "nvfp4": 16}
LOGICAL = {"fp8-block": "float8_e4m3fn", "fp8-block-bf16": "float8_e4m3fn", "fp8-channel": "float8_e4m3fn", "int8": "int8", "int4": "int4",
           "int4-asymmetric": "int4", "mxfp4": "float4_e2m1fn", "nvfp4": "float4_e2m1fn"}


def floats(tensor):
    dtype, values = tensor
    return to_f32(values) if dtype == "BF16" else values


def parameter(tensors, name):
    """What a parameter stands for, in the float arithmetic of Qwix: (code - zero point) * scale."""
    if name in tensors:
        return floats(tensors[name])
    dtype, codes = tensors[name + ".array.qvalue"]
    scales = floats(tensors[name + ".array.scale"])

    def spread(values):
        for axis, size in enumerate(codes.shape):
            values = np.repeat(values, size // values.shape[axis], axis)
        return values

    values = e4m3(codes) if dtype == "F8_E4M3" else codes.astype("<f4")
    if name + ".array.zero_point" in tensors:
        values = values - spread(tensors[name + ".array.zero_point"][1].astype("<f4"))
    return values * spread(scales)


class Qwix(JobTest):
    def convert(self, source, *options, ranks=0):
        out = self.folder / f"out{len(list(self.folder.iterdir()))}"
        result = self.run_program("convert", source, out, "--layout", "qwix", *options, ranks=ranks)
        self.assertEqual(result.returncode, 0, result.stderr)
        return out

    def model(self, kind, **options):
        model = CodedModel(kind, **options)
        return model, model.save(self.folder / f"model{len(list(self.folder.iterdir()))}")

    def refused(self, source, rules, *words, status=3, **changes):
        result = self.run_program("plan", source, self.folder / "out", "--layout", "qwix", "--jax-model", self.jax_model(rules, **changes))
        self.assert_refused(result, status, *words)

    def jax_model(self, rules, extends="nnx", **changes):
        file = self.folder / f"jax{len(list(self.folder.iterdir()))}.json"
        file.write_text(json.dumps({"schema": 1, "name": "own", **({"extends": extends} if extends else {}), **changes, "weights": rules}))
        return file

    def check(self, tensors, name, wanted):
        np.testing.assert_array_equal(parameter(tensors, name), wanted, name)

    def check_dense(self, tensors, model):
        for layer in range(model.layers):
            at = f"layers.{layer}."
            for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
                         "mlp.down_proj"):
                self.check(tensors, f"{at}{name}.kernel", model.values[f"model.{at}{name}.weight"].T)
            self.check(tensors, at + "input_layernorm.scale", model.values[f"model.{at}input_layernorm.weight"])
        self.check(tensors, "embed_tokens.embedding", model.values["model.embed_tokens.weight"])
        self.check(tensors, "lm_head.kernel", model.values["lm_head.weight"].T)

    def test_codes_of_every_format_are_carried_over_exactly(self):
        for kind in CONFIGS:
            with self.subTest(kind=kind):
                model, source = self.model(kind)
                out = self.convert(source, ranks=2)
                tensors = read_folder(out)
                self.assertLessEqual({dtype for dtype, _ in tensors.values()}, READABLE)
                self.check_dense(tensors, model)
                tile = TILES[kind] or INNER
                down = "layers.1.mlp.down_proj.kernel"
                self.assertEqual(tensors[down + ".array.qvalue"][1].shape, (INNER, HIDDEN))
                self.assertEqual(tensors[down + ".array.scale"][1].shape, (INNER // tile, HIDDEN))
                abstract = json.loads((out / "qwix_abstract.json").read_text())["tensors"]
                self.assertEqual(set(abstract), set(tensors))
                for name, entry in abstract.items():
                    self.assertEqual((entry["dtype"], entry["shape"]), (tensors[name][0], list(tensors[name][1].shape)), name)
                    self.assertTrue((out / entry["file"]).is_file())
                self.assertEqual(abstract[down + ".array.qvalue"]["logical_dtype"], LOGICAL[kind])
                rules = json.loads((out / "qwix_rules.json").read_text())
                self.assertEqual(len(rules), 7)
                self.assertEqual({rule["module_path"] for rule in rules if rule["module_path"].endswith("down_proj")}, {"layers/[^/]+/mlp/down_proj"})
                self.assertEqual({(rule["weight_qtype"], rule["tile_size"], rule["weight_calibration_method"]) for rule in rules},
                                 {(LOGICAL[kind], TILES[kind] or None, "minmax" if kind == "int4-asymmetric" else "absmax")})
                self.assertNotIn("quantization_config", json.loads((out / "config.json").read_text()))
                result = self.run_program("verify", out, "--against", source)
                self.assertEqual(result.returncode, 0, result.stdout)
                self.assertIn("structure: ", result.stdout)

    def test_scale_type_f32_widens_every_scale(self):
        model, source = self.model("fp8-block-bf16")
        name = "layers.0.mlp.up_proj.kernel.array.scale"
        self.assertEqual(read_folder(self.convert(source))[name][0], "BF16")
        tensors = read_folder(self.convert(source, "--scale-type", "f32"))
        self.assertEqual(tensors[name][0], "F32")
        self.check_dense(tensors, model)

    def test_bytes_do_not_depend_on_ranks_threads_or_memory(self):
        _, source = self.model("fp8-block", experts=4)
        options = ("--jax-model", "qwen3.5", "--max-shard-size", "300K")
        wanted = hashes(self.convert(source, *options))
        self.assertGreater(len([name for name in wanted if name.endswith(".safetensors")]), 3)
        for ranks, more in ((2, []), (3, ["--ranks-per-node", "1", "--threads", "2"]), (0, ["--memory", "66M", "--backend", "reference"])):
            self.assertEqual(hashes(self.convert(source, *options, *more, ranks=ranks)), wanted)

    def test_a_job_that_was_cut_off_goes_on(self):
        _, source = self.model("fp8-block", experts=4)
        options = ("--layout", "qwix", "--jax-model", "qwen3.5", "--max-shard-size", "300K")
        wanted = hashes(self.convert(source, *options[2:]))
        out = self.folder / "out"
        interval = ("--checkpoint-interval", "0", "--threads", "1")
        faults = {"LD_PRELOAD": os.environ["QUANTMILL_FAULTS"], "FAULT_RULES": "write .safetensors EIO 100+"}
        result = self.run_program("convert", source, out, *options, *interval, ranks=2, env=faults)
        self.assert_refused(result, 4, "with --resume goes on")
        self.assertFalse(out.exists())
        result = self.run_program("convert", source, out, *options, "--resume", ranks=3)
        self.assertEqual(result.returncode, 0, result.stderr)
        finished, tasks = map(int, re.search(r"resumed: .* and (\d+) of (\d+) write tasks", result.stderr).groups())
        self.assertTrue(0 < finished < tasks, (finished, tasks))
        self.assertEqual(hashes(out), wanted)

    def test_a_changed_byte_is_found(self):
        _, source = self.model("int4")
        out = self.convert(source)
        file = sorted(out.glob("*.safetensors"))[-1]
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        result = self.run_program("verify", out, "--against", source)
        self.assertEqual(result.returncode, 10)
        self.assertIn(file.name + ": hash", result.stdout)

    def test_experts_are_stacked_and_opaque_ones_keep_square_blocks(self):
        model, source = self.model("fp8-block", experts=4)
        tensors = read_folder(self.convert(source, "--jax-model", "qwen3.5"))
        experts = [f"model.layers.1.mlp.experts.{expert}." for expert in range(4)]
        gate_up = np.stack([np.concatenate([model.values[at + "gate_proj.weight"], model.values[at + "up_proj.weight"]]).T for at in experts])
        down = np.stack([model.values[at + "down_proj.weight"].T for at in experts])
        at = "layers.1.mlp.experts."
        self.check(tensors, at + "gate_up_proj_weight", gate_up)
        self.check(tensors, at + "down_proj_weight", down)
        # 192 outputs are not a multiple of the source's 128: blocks of 64 divide both.
        self.assertEqual(tensors[at + "gate_up_proj_weight.array.scale"][1].shape, (4, HIDDEN // 64, 2 * EXPERT // 64))
        self.assertEqual(tensors[at + "down_proj_weight.array.scale"][1].shape, (4, EXPERT // 64, HIDDEN // 64))
        tensors = read_folder(self.convert(source, "--jax-model", "nnx-fused"))
        self.check(tensors, at + "gate_up_proj", gate_up)
        self.check(tensors, at + "down_proj", down)
        # One rule for the module: what fits down_proj's 192 inputs is taken for both.
        self.assertEqual(tensors[at + "gate_up_proj.array.scale"][1].shape, (4, HIDDEN // 64, 2 * EXPERT))
        self.assertEqual(tensors[at + "down_proj.array.scale"][1].shape, (4, EXPERT // 64, HIDDEN))

    def test_layers_are_stacked_for_scan(self):
        model, source = self.model("int4-asymmetric", layers=4)
        tensors = read_folder(self.convert(source, "--jax-model", "nnx-scan", ranks=2))
        for name in ("self_attn.k_proj", "mlp.down_proj"):
            self.check(tensors, f"layers.{name}.kernel", np.stack([model.values[f"model.layers.{layer}.{name}.weight"].T for layer in range(4)]))
        self.check(tensors, "layers.input_layernorm.scale",
                   np.stack([model.values[f"model.layers.{layer}.input_layernorm.weight"] for layer in range(4)]))

    def test_blocks_of_layers(self):
        model, source = self.model("int8", layers=8, experts=2)
        tensors = read_folder(self.convert(source, "--jax-model", "qwen3.5-scan"))

        def up(layer):
            return np.stack([model.values[f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"].T for expert in range(2)])

        linear = parameter(tensors, "blocks.linear_layers.layers.mlp.experts.gate_up_proj_weight")
        self.assertEqual(linear.shape, (2, 3, 2, HIDDEN, 2 * EXPERT))
        np.testing.assert_array_equal(linear[1, 2][..., EXPERT:], up(6))
        np.testing.assert_array_equal(parameter(tensors, "blocks.full_attn_layer.mlp.experts.gate_up_proj_weight")[1][..., EXPERT:], up(7))

    def test_heads_become_axes(self):
        model, source = self.model("int8")
        tensors = read_folder(self.convert(source, "--jax-model", "tunix-gemma3"))
        at = "model.layers.1.self_attn."
        q = model.values[at + "q_proj.weight"].reshape(HEADS, HEAD, HIDDEN).swapaxes(1, 2)
        self.check(tensors, "layers.1.attn.q_einsum.w", q)
        kv = np.stack([model.values[f"{at}{part}_proj.weight"].reshape(KV_HEADS, HEAD, HIDDEN).swapaxes(1, 2) for part in "kv"])
        self.check(tensors, "layers.1.attn.kv_einsum.w", kv)
        self.check(tensors, "layers.1.attn.attn_vec_einsum.w", model.values[at + "o_proj.weight"].T.reshape(HEADS, HEAD, HIDDEN))
        self.assertEqual(tensors["layers.1.attn.kv_einsum.w.array.scale"][1].shape, (2, KV_HEADS, 1, HEAD))
        self.assertEqual(tensors["layers.1.attn.attn_vec_einsum.w.array.scale"][1].shape, (1, 1, HIDDEN))
        _, blocks = self.model("fp8-block")
        self.assert_refused(self.run_program("plan", blocks, self.folder / "o", "--layout", "qwix", "--jax-model", "tunix-gemma3"), 3,
                            r"attn_vec_einsum.w: its inputs are split into \(heads dim\)", "one scale for each output")

    def test_a_weight_is_split(self):
        model, source = self.model("fp8-block")
        rules = [{"from": "{path:*}.o_proj.weight", "to": "{path}.o_low.kernel", "axes": "out in -> in out",
                  "take": {"axis": "out", "start": "0", "size": "out / 2"}},
                 {"from": "{path:*}.o_proj.weight", "to": "{path}.o_high.kernel", "axes": "out in -> in out",
                  "take": {"axis": "out", "start": "out / 2", "size": "out / 2"}},
                 {"from": "lm_head.weight", "to": "head_a", "axes": "vocab model -> model vocab",
                  "take": {"axis": "model", "start": "0", "size": "64"}},
                 {"from": "lm_head.weight", "to": "head_b", "axes": "vocab model -> vocab model",
                  "take": {"axis": "model", "start": "64", "size": "model - 64"}}]
        tensors = read_folder(self.convert(source, "--jax-model", self.jax_model(rules), ranks=2))
        wanted = model.values["model.layers.0.self_attn.o_proj.weight"].T
        self.check(tensors, "layers.0.self_attn.o_low.kernel", wanted[:, :HIDDEN // 2])
        self.check(tensors, "layers.0.self_attn.o_high.kernel", wanted[:, HIDDEN // 2:])
        self.check(tensors, "head_a", model.values["lm_head.weight"][:, :64].T)
        self.check(tensors, "head_b", model.values["lm_head.weight"][:, 64:])
        self.refused(source, rules[:1], "o_proj.weight: the parts of it that parameters take are 32768 elements, but it has 65536")

    def test_plan_lists_weights_and_parameters(self):
        _, source = self.model("mxfp4")
        result = self.run_program("plan", source, self.folder / "out", "--layout", "qwix", "--jax-model", "nnx-fused")
        self.assertIn("model.layers.1.mlp.gate_proj.weight, model.layers.1.mlp.up_proj.weight -> layers.1.mlp.gate_up_proj.kernel [256, 768] "
                      "float4_e2m1fn in F8_E4M3, scales BF16 [8, 768] of 32 x 1\n", result.stdout)
        listed = json.loads(self.run_program("plan", source, self.folder / "out", "--layout", "qwix", "--json").stdout)["parameters"]
        by_name = {entry["name"]: entry for entry in listed}
        self.assertEqual(by_name["layers.0.mlp.down_proj.kernel"]["sources"], ["model.layers.0.mlp.down_proj.weight"])
        self.assertEqual(by_name["layers.0.mlp.down_proj.kernel"]["axes"], ["in", "out"])
        self.assertEqual(by_name["lm_head.kernel"]["shape"], [256, 64])

    def test_what_does_not_fit_is_named(self):
        model, source = self.model("fp8-block", experts=2)
        expert = {"from": "{path:*}.experts.{expert:#}.{name}.weight", "to": "{path}.experts.{name}", "axes": "out in -> expert in out"}
        self.refused(source, [{**expert, "block": "128"}], "gate_proj: blocks of 128 do not fit|down_proj: blocks of 128 do not fit", "allow 64 at most")
        self.refused(source, [{**expert, "to": "experts.{name}"}], "parameter experts.gate_proj: .*take the same place")
        self.refused(source, [{"from": "lm_head.weight", "to": "norm.scale"}], "makes the parameter norm.scale, which the rule for")
        self.refused(source, [{"from": "lm_head.weight", "to": "norm.scale.more"}], "norm.scale.more: norm.scale is a parameter too")
        self.refused(source, [expert], "tensor model.embed_tokens.weight: the JAX model own has no parameter for it", "leave_out", extends=None,
                     prefixes=["model."])
        self.refused(source, [{**expert, "axes": "out in -> expert in"}], 'axes "out in -> expert in": out is on the left and not on the right')
        self.refused(source, [{**expert, "from": [expert["from"], "x.weight"]}], 'several "from" are joined along "join"')
        self.refused(source, [{**expert, "side": "x"}], 'unknown key "side"')
        del model.tensors["model.layers.1.mlp.experts.1.up_proj.weight"], model.tensors["model.layers.1.mlp.experts.1.up_proj.weight_scale_inv"]
        incomplete = model.save(self.folder / "incomplete")
        result = self.run_program("plan", incomplete, self.folder / "out", "--layout", "qwix", "--allow-unknown")
        self.assertEqual(result.returncode, 3)

    def test_groups_that_are_not_complete_or_not_alike(self):
        model, source = self.model("fp8-block")
        fused = {"from": ["{path:*}.mlp.gate_proj.weight", "{path:*}.mlp.{part}.weight"], "to": "{path}.mlp.gate_up", "axes": "out in -> in out", "join": "out"}
        self.refused(source, [{**fused, "from": [fused["from"][0], "{path:*}.mlp.other_proj.weight"]}],
                     "parameter layers.0.mlp.gate_up: 1 of the 2 weights", "missing is {path:.}.mlp.other_proj.weight")
        result = self.run_program("plan", source, self.folder / "out", "--layout", "qwix", "--jax-model", "nnx-scan", "--keep", "*layers.1.mlp*")
        self.assert_refused(result, 3, r"parameter layers.mlp.(gate|up|down)_proj.kernel: .*is quantized and .*layers.1", "quantize or keep both")

    def test_rules_are_exact_where_layers_differ(self):
        _, source = self.model("fp8-block", layers=4)
        out = self.convert(source, "--keep", "*layers.2.mlp.*")
        rules = {rule["module_path"] for rule in json.loads((out / "qwix_rules.json").read_text())}
        self.assertIn("layers/(0|1|3)/mlp/down_proj", rules)
        self.assertIn("layers/[^/]+/self_attn/o_proj", rules)
        tensors = read_folder(out)
        self.assertEqual(tensors["layers.2.mlp.down_proj.kernel"][0], "BF16")
        mixed, source = self.model("fp8-block", layers=2, kinds={"model.layers.1.mlp.down_proj": "int8"})
        tensors = read_folder(self.convert(source))
        self.check_dense(tensors, mixed)

    def test_schemes_give_what_their_own_layouts_do(self):
        _, source = self.model("plain")
        for scheme in ("mxfp4", "mxfp6-e2m3", "mxfp6-e3m2", "mxfp8", "nvfp4", "fp8-tensor", "fp8-channel", "fp8-block", "int8", "w8a16",
                       "w8a16-g128", "int4-g32", "int4-g128", "int4-asym-g32", "int4-asym-g128"):
            with self.subTest(scheme=scheme):
                out = self.convert(source, "--scheme", scheme, ranks=2)
                own = self.quantize("--scheme", scheme, "--scaling", "none", source=source, stats=None)
                wanted = read_folder(self.quantize("--scheme", "f32", "--scaling", "none", source=own, stats=None))
                tensors = read_folder(out)
                for name in ("layers.0.self_attn.q_proj", "layers.1.mlp.down_proj"):
                    self.check(tensors, name + ".kernel", wanted[f"model.{name}.weight"][1].T)
                result = self.run_program("verify", out, "--against", source)
                self.assertEqual(result.returncode, 0, result.stdout)

    def test_unquantized_models_too(self):
        model, source = self.model("fp8-block")
        for scheme, dtype in (("f32", "F32"), ("bf16", "BF16")):
            tensors = read_folder(self.convert(source, "--scheme", scheme, "--jax-model", "nnx-scan"))
            self.assertEqual({entry[0] for name, entry in tensors.items()}, {dtype} if scheme == "bf16" else {"F32", "BF16"})
            if scheme == "f32":
                self.check(tensors, "layers.mlp.up_proj.kernel", np.stack([model.values[f"model.layers.{i}.mlp.up_proj.weight"].T for i in range(2)]))

    def test_bad_codes_stop_the_job(self):
        model, _ = self.model("fp8-block")
        name = "model.layers.1.mlp.up_proj.weight"
        model.tensors[name][1][200, 7] = 0x7F
        result = self.run_program("convert", model.save(self.folder / "nan"), self.folder / "out", "--layout", "qwix", ranks=2)
        self.assert_refused(result, 3, name + ": row 200, column 7: a code is NaN")
        self.assertFalse((self.folder / "out").exists())

    def test_options_that_do_not_go_together(self):
        _, source = self.model("fp8-block")
        for options, words in ((["--jax-model", "nnx"], ["belong to layout"]),
                               (["--layout", "qwix", "--jax-model", "none-such"], ["neither a file nor one of the built-in .*nnx-scan"]),
                               (["--scheme", "source", "--layout", "quark"], ['"source" the layouts qwix']),
                               (["--layout", "qwix", "--scale-type", "f8"], ['scale_type: there is no "f8"; choose one of source, f32'])):
            self.assert_refused(self.run_program("convert", source, self.folder / "out", *options), 2, *words)
        result = self.run_program("plan", source, self.folder / "out", "--layout", "qwix", "--scaling", "awq-grid")
        self.assert_refused(result, 2, "nothing can be scaled")


if __name__ == "__main__":
    unittest.main()
