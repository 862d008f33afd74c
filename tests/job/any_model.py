"""Models that are stored in different ways: what is the same model must come out the same."""
import json
import sys
import unittest

import numpy as np

from jobs import JobTest, PreparedTest, hashes, read_folder, read_safetensors, write_safetensors
from jobs import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from make_demo_drafter import write_torch_archive  # noqa: E402

LAYERS, HIDDEN, EXPERTS, EXPERT, HEADS, KV_HEADS, HEAD, VOCAB = 2, 64, 3, 96, 4, 2, 32, 40


def to_bf16(values):
    bits = np.asarray(values, "<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def to_f32(bits):
    return (bits.astype("<u4") << 16).view("<f4")


class Model:
    """Random weights of a mixture of experts, with each expert's matrices apart."""

    def __init__(self):
        self.random = np.random.default_rng(7)
        self.tensors = {}
        self.add("model.embed_tokens.weight", VOCAB, HIDDEN)
        self.add("lm_head.weight", VOCAB, HIDDEN)
        self.norm("model.norm.weight", HIDDEN)
        for layer in range(LAYERS):
            prefix = f"model.layers.{layer}."
            self.norm(prefix + "input_layernorm.weight", HIDDEN)
            self.norm(prefix + "post_attention_layernorm.weight", HIDDEN)
            self.norm(prefix + "self_attn.q_norm.weight", HEAD)
            self.norm(prefix + "self_attn.k_norm.weight", HEAD)
            self.add(prefix + "self_attn.q_proj.weight", HEADS * HEAD, HIDDEN)
            self.add(prefix + "self_attn.k_proj.weight", KV_HEADS * HEAD, HIDDEN)
            self.add(prefix + "self_attn.v_proj.weight", KV_HEADS * HEAD, HIDDEN)
            self.add(prefix + "self_attn.o_proj.weight", HIDDEN, HEADS * HEAD)
            self.add(prefix + "mlp.gate.weight", EXPERTS, HIDDEN)
            for expert in range(EXPERTS):
                self.add(f"{prefix}mlp.experts.{expert}.gate_proj.weight", EXPERT, HIDDEN)
                self.add(f"{prefix}mlp.experts.{expert}.up_proj.weight", EXPERT, HIDDEN)
                self.add(f"{prefix}mlp.experts.{expert}.down_proj.weight", HIDDEN, EXPERT)

    def add(self, name, rows, cols):
        self.tensors[name] = ("BF16", to_bf16(0.05 * self.random.standard_normal((rows, cols))))

    def norm(self, name, size):
        self.tensors[name] = ("BF16", to_bf16(np.exp(0.5 * self.random.standard_normal(size))))

    def experts(self, layer, part):
        return np.stack([self.tensors[f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"][1]
                         for expert in range(EXPERTS)])

    def stacked(self, transposed):
        """The experts of a layer as two tensors, [E, 2I, H] and [E, H, I] or both turned."""
        tensors = {name: value for name, value in self.tensors.items() if ".experts." not in name}
        for layer in range(LAYERS):
            prefix = f"model.layers.{layer}.mlp.experts."
            gate_up = np.concatenate([self.experts(layer, "gate"), self.experts(layer, "up")], axis=1)
            down = self.experts(layer, "down")
            for name, value in (("gate_up_proj", gate_up), ("down_proj", down)):
                tensors[prefix + name] = ("BF16", value.swapaxes(1, 2) if transposed else value)
        return tensors


CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
          "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCAB,
          "intermediate_size": 256, "moe_intermediate_size": EXPERT, "num_experts": EXPERTS, "num_experts_per_tok": 2,
          "tie_word_embeddings": False}


def save(folder, tensors, **changes):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def recorded(tokens=lambda name: 4096):
    random = np.random.default_rng(8)
    inputs = {}
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        inputs[at + "self_attn.q_proj"] = HIDDEN
        inputs[at + "self_attn.o_proj"] = HEADS * HEAD
        inputs[at + "mlp.gate"] = HIDDEN
        inputs.update({f"{at}mlp.experts.{expert}.down_proj": EXPERT for expert in range(EXPERTS)})
    records = {}
    for name, size in inputs.items():
        absmean = np.exp(1.5 * random.standard_normal(size))
        records[name] = {"absmean": absmean.astype("<f4"), "sqmean": (2 * absmean**2).astype("<f4"),
                         "absmax": (8 * absmean).astype("<f4"), "count": tokens(name)}
    return records


def recorded_maxima():
    return {name: record["absmax"] for name, record in recorded().items()}


def save_statistics(prefix, tokens=lambda name: 4096, rename=lambda name: name, maxima=True, unseen=None):
    """As a recorder that names inputs after the modules that read them would write them. `unseen`: an input that no
    token reached."""
    records = recorded(lambda name: 0 if name == unseen else tokens(name))
    for name, record in records.items():
        if not maxima:
            del record["absmax"]
        if name == unseen:
            record |= {key: 0 * value for key, value in record.items() if key != "count"}
    write_torch_archive(prefix.parent / f"{prefix.name}.tp0.pt", {rename(name): record for name, record in records.items()})
    return prefix


class Experts(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.model = Model()
        cls.stats = save_statistics(self.folder / "calib")
        cls.separate = save(self.folder / "separate", cls.model.tensors)
        cls.stacked = save(self.folder / "stacked", cls.model.stacked(False))
        cls.turned = save(self.folder / "turned", cls.model.stacked(True), architectures=["Qwen3VLMoeForConditionalGeneration"])

    def test_experts_that_are_stored_as_one_are_quantized_as_if_they_were_apart(self):
        wanted = read_folder(self.quantize(source=self.separate, stats=self.stats, ranks=2))
        self.assertIn("model.layers.1.mlp.experts.2.up_proj.weight_scale", wanted)
        for source in (self.stacked, self.turned):
            got = read_folder(self.quantize(source=source, stats=self.stats, ranks=2))
            self.assertEqual(got.keys(), wanted.keys())
            for name, (dtype, values) in wanted.items():
                self.assertEqual(got[name][0], dtype, name)
                np.testing.assert_array_equal(got[name][1], values, name)

    def test_folded_but_not_quantized_they_stay_as_they_are_stored(self):
        plain = ("--layout", "plain", "--scheme", "f32")
        wanted = read_folder(self.quantize(*plain, source=self.separate, stats=self.stats))
        folded = Model()
        folded.tensors = wanted
        for source, transposed in ((self.stacked, False), (self.turned, True)):
            got = read_folder(self.quantize(*plain, source=source, stats=self.stats))
            for name, (_, values) in folded.stacked(transposed).items():
                np.testing.assert_array_equal(got[name][1], values, name)
        changed = [name for name, (_, values) in wanted.items()
                   if not np.array_equal(values, to_f32(self.model.tensors[name][1]))]
        self.assertIn("model.layers.0.mlp.gate.weight", changed)  # the router reads the norm as well

    def test_verify_proves_every_reader_of_every_kind_of_storage(self):
        for source, options in ((self.separate, []), (self.stacked, []), (self.turned, []), (self.turned, ["--layout", "plain", "--scheme", "bf16"])):
            out = self.quantize(*options, source=source, stats=self.stats)
            result = self.run_program("verify", out, "--against", source, "--function")
            self.assertEqual(result.returncode, 0, result.stdout)
            self.assertRegex(result.stdout, r"function: \d+ readers keep their outputs")

    def test_names_of_recorders_and_prefixes_do_not_matter(self):
        wanted = hashes(self.quantize(source=self.separate, stats=self.stats))
        other = save_statistics(self.folder / "calib", rename=lambda name: "model." + name)
        self.assertEqual(hashes(self.quantize(source=self.separate, stats=other))["model.safetensors"], wanted["model.safetensors"])

    def test_statistics_of_another_model_are_refused(self):
        other = save_statistics(self.folder / "calib", rename=lambda name: name if "0.self_attn" in name else "decoder." + name)
        result = self.run_program("quantize", self.separate, self.folder / "out", "--stats", other)
        self.assert_refused(result, 3, r"\d+ of 12 recorded inputs match nothing", "decoder.layers.0.mlp")

    def test_an_expert_that_saw_few_tokens_is_named_and_left_unscaled(self):
        few = save_statistics(self.folder / "calib", lambda name: {"layers.1.mlp.experts.2.down_proj": 5, "layers.0.mlp.experts.0.down_proj": 0}
                              .get(name, 4096))
        plan = self.run_program("plan", self.separate, self.folder / "out", "--stats", few)
        self.assertRegex(plan.stdout, r"not scaled: layers.0.experts.0.down, layers.1.experts.2.down \(fewer than 32 tokens")
        self.assertRegex(plan.stdout, r"layers.1.experts.#.down +3 experts, tokens 5 to 4096, median 4096; 1 not scaled")
        listed = json.loads(self.run_program("plan", self.separate, self.folder / "out", "--stats", few, "--json").stdout)
        tokens = {group["name"]: group["tokens"] for group in listed["fold_groups"]}
        self.assertEqual(tokens["layers.1.experts.2.down"], 5)
        out = read_folder(self.quantize("--layout", "plain", "--scheme", "f32", source=self.separate, stats=few))
        reference = read_folder(self.quantize("--layout", "plain", "--scheme", "f32", source=self.separate, stats=self.stats))
        name = "model.layers.1.mlp.experts.{}.down_proj.weight"
        np.testing.assert_array_equal(out[name.format(2)][1], to_f32(self.model.tensors[name.format(2)][1]))
        np.testing.assert_array_equal(out[name.format(1)][1], reference[name.format(1)][1])
        listed = json.loads(self.run_program("plan", self.separate, self.folder / "o", "--stats", few, "--min-tokens", "5", "--json").stdout)
        self.assertEqual([group["name"] for group in listed["fold_groups"] if "tokens" in (group["not_scaled"] or "")],
                         ["layers.0.experts.0.down"])

    def test_slices_of_one_tensor_are_kept_together(self):
        result = self.run_program("quantize", self.stacked, self.folder / "out", "--scaling", "none", "--keep", "*experts.down_proj?1?")
        self.assert_refused(result, 2, r"experts.down_proj.0. would be mxfp4 and .*experts.down_proj.1. unquantized", "one stored tensor")

    def test_a_matrix_of_another_shape_and_an_unknown_tensor_are_named(self):
        tensors = dict(self.model.tensors)
        tensors["model.layers.0.mlp.gate.bias"] = tensors["model.norm.weight"]
        result = self.run_program("plan", save(self.folder / "unknown", tensors), self.folder / "out", "--scaling", "none")
        self.assert_refused(result, 3, "model.layers.0.mlp.gate.bias", "--allow-unknown")
        tensors = {**self.model.tensors, "model.layers.1.mlp.gate.weight": self.model.tensors["lm_head.weight"]}
        result = self.run_program("plan", save(self.folder / "shape", tensors), self.folder / "out", "--scaling", "none")
        self.assert_refused(result, 3, r"model.layers.1.mlp.gate.weight has shape \[40, 64\], wanted \[3, 64\]")

    def test_arch_check_says_what_was_found(self):
        result = self.run_program("arch", "check", "auto", self.stacked)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"\n +2 +0  layers.\{layer\}.mlp.experts.gate_up_proj\n")
        self.assertRegex(result.stdout, r"variants: stacked\n")
        self.assertEqual(self.run_program("arch", "check", "llama", self.stacked).returncode, 3)


class GivenScales(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.model = save(self.folder / "model", Model().tensors)
        cls.stats = save_statistics(self.folder / "calib")
        cls.first = self.quantize(source=cls.model, stats=cls.stats, out=self.folder / "first")

    def test_scales_of_an_earlier_job_give_its_weights_again(self):
        scales = self.first / "quantmill_scales.h5"
        again = self.quantize("--scales", scales, source=self.model, stats=None)
        self.assertEqual(hashes(again)["model.safetensors"], hashes(self.first)["model.safetensors"])

    def test_they_can_be_made_powers_of_two(self):
        out = self.quantize("--scales", self.first / "quantmill_scales.h5", "--fold-scales", "pow2", "--layout", "plain", "--scheme", "bf16",
                            source=self.model, stats=None)
        folded, source = (read_safetensors(f / "model.safetensors") for f in (out, self.model))
        name = "model.layers.0.post_attention_layernorm.weight"
        ratio = to_f32(source[name][1]) / to_f32(folded[name][1])
        self.assertTrue((np.log2(ratio) == np.round(np.log2(ratio))).all())
        self.assertGreater(len(set(ratio)), 2)

    def test_scales_of_another_model_are_refused(self):
        config = json.loads((self.model / "config.json").read_text())
        tensors = {name: value for name, value in read_safetensors(self.model / "model.safetensors").items() if ".layers.1." not in name}
        smaller = save(self.folder / "smaller", tensors, **{**config, "num_hidden_layers": 1})
        result = self.run_program("quantize", smaller, self.folder / "out", "--scales", self.first / "quantmill_scales.h5")
        self.assert_refused(result, 3, "layers.1.* which the model does not have")
        result = self.run_program("quantize", self.model, self.folder / "out", "--scales", self.model / "config.json")
        self.assert_refused(result, 3, "config.json")

    def test_they_and_statistics_exclude_each_other(self):
        result = self.run_program("quantize", self.model, self.folder / "out", "--scales", "x", "--stats", self.stats)
        self.assert_refused(result, 2, "--scales")


class Tied(JobTest):
    def test_an_equal_head_is_not_written_again(self):
        tensors = Model().tensors
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        source = save(self.folder / "model", tensors, tie_word_embeddings=True)
        out = read_folder(self.quantize("--scaling", "none", source=source, stats=None))
        self.assertNotIn("lm_head.weight", out)
        np.testing.assert_array_equal(out["model.embed_tokens.weight"][1], tensors["model.embed_tokens.weight"][1])

    def test_a_different_head_stops_the_job(self):
        source = save(self.folder / "model", Model().tensors, tie_word_embeddings=True)
        result = self.run_program("quantize", source, self.folder / "out", "--scaling", "none")
        self.assert_refused(result, 3, "model.embed_tokens.weight and lm_head.weight differ from byte 0", "--untie")
        self.assert_nothing_left(self.folder, "model")

    def test_untie_keeps_both_and_says_so(self):
        tensors = Model().tensors
        source = save(self.folder / "model", tensors, tie_word_embeddings=True)
        out = self.quantize("--scaling", "none", "--untie", source=source, stats=None)
        np.testing.assert_array_equal(read_folder(out)["lm_head.weight"][1], tensors["lm_head.weight"][1])
        self.assertIs(json.loads((out / "config.json").read_text())["tie_word_embeddings"], False)

    def test_a_missing_head_is_missed(self):
        tensors = Model().tensors
        del tensors["lm_head.weight"]
        result = self.run_program("plan", save(self.folder / "model", tensors), self.folder / "out", "--scaling", "none")
        self.assert_refused(result, 3, "lm_head.weight")
        source = save(self.folder / "tied", tensors, tie_word_embeddings=True)
        self.assertEqual(self.run_program("plan", source, self.folder / "out", "--scaling", "none").returncode, 0)


if __name__ == "__main__":
    unittest.main()
