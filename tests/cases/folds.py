"""Who reads a scaled vector: fold maps that others had wrong, on the smallest model of each kind. See README.md."""
import json
import unittest

from family_headers import save_sparse
from headers import attention, ends, mlp, norms, write_headers
from jobs import GOLDEN, JobTest

HIDDEN, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY = 64, 4, 2, 32, 96, 40
SIZES = dict(hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD, intermediate_size=INNER,
             vocab_size=VOCABULARY, tie_word_embeddings=False)


class Folds(JobTest):
    def groups(self, config, shapes):
        return self.groups_of(write_headers(self.folder / "model", config, shapes))

    def golden(self, name):
        return self.groups_of(save_sparse(self.folder / "model", GOLDEN / "families" / f"{name}.json"))

    def groups_of(self, source):
        """Name of a fold group -> {"producers", "readers", "no_fold"}, names without what all begin with."""
        result = self.run_program("plan", source, self.folder / "out", "--scaling", "none", "--layout", "plain", "--scheme", "f32", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        short = lambda names: {name.removeprefix("model.").removeprefix("language_model.") for name in names}  # noqa: E731
        return {group["name"]: {"producers": short(group["producers"]), "readers": short(group["readers"]), "no_fold": group["no_fold"]}
                for group in json.loads(result.stdout)["fold_groups"]}

    def test_a_router_reads_the_norm_before_it(self):
        layer, router = "model.layers.0", "model.layers.0.mlp.gate.weight"
        shapes = {**ends(HIDDEN, VOCABULARY), **norms(layer, HIDDEN), **attention(layer, HIDDEN, HEADS, KV_HEADS, HEAD), router: (2, HIDDEN),
                  f"{layer}.self_attn.q_norm.weight": (HEAD,), f"{layer}.self_attn.k_norm.weight": (HEAD,)}
        for expert in range(2):
            shapes |= mlp(f"{layer}.mlp.experts.{expert}", HIDDEN, INNER)
        groups = self.groups({"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 1, "num_experts": 2, "moe_intermediate_size": INNER, **SIZES}, shapes)
        self.assertEqual(groups["layers.0.gate_up"]["readers"],
                         {"layers.0.mlp.gate.weight", *(f"layers.0.mlp.experts.{e}.{part}_proj.weight" for e in (0, 1) for part in ("gate", "up"))})
        self.assertEqual(groups["layers.0.gate_up"]["producers"], {"layers.0.post_attention_layernorm.weight"})

    def test_mixtrals_router_and_every_expert_read_it(self):
        layer = "model.layers.0"
        shapes = {**ends(HIDDEN, VOCABULARY), **norms(layer, HIDDEN), **attention(layer, HIDDEN, HEADS, KV_HEADS, HEAD),
                  f"{layer}.block_sparse_moe.gate.weight": (2, HIDDEN)}
        for expert in range(2):
            module = f"{layer}.block_sparse_moe.experts.{expert}"
            shapes |= {f"{module}.w1.weight": (INNER, HIDDEN), f"{module}.w3.weight": (INNER, HIDDEN), f"{module}.w2.weight": (HIDDEN, INNER)}
        groups = self.groups({"architectures": ["MixtralForCausalLM"], "num_hidden_layers": 1, "num_local_experts": 2, **SIZES}, shapes)
        self.assertEqual(groups["layers.0.gate_up"]["readers"],
                         {"layers.0.block_sparse_moe.gate.weight",
                          *(f"layers.0.block_sparse_moe.experts.{e}.{part}.weight" for e in (0, 1) for part in ("w1", "w3"))})

    def test_dense_first_layers_have_no_router_and_the_others_do(self):
        groups = self.golden("tiny-glm-5")
        self.assertEqual(groups["layers.0.gate_up"]["readers"], {"layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight"})
        self.assertIn("layers.1.mlp.gate.weight", groups["layers.1.gate_up"]["readers"])
        self.assertIn("layers.2.mlp.shared_experts.up_proj.weight", groups["layers.2.gate_up"]["readers"])

    def test_an_indexer_reads_what_attention_reads(self):
        groups = self.golden("tiny-glm-5")
        for name in ("wk", "weights_proj"):
            self.assertIn(f"layers.0.self_attn.indexer.{name}.weight", groups["layers.0.qkv"]["readers"])
        self.assertIn("layers.0.self_attn.indexer.wq_b.weight", groups["layers.0.q_b"]["readers"])

    def test_the_shared_expert_and_its_gate_read_it(self):
        groups = self.golden("tiny-qwen3.5-moe-vl")
        self.assertLessEqual({f"layers.0.mlp.shared_expert{what}.weight" for what in ("_gate", ".gate_proj", ".up_proj")}
                             | {"layers.0.mlp.gate.weight"}, groups["layers.0.gate_up"]["readers"])
        self.assertEqual(groups["layers.0.shared_expert.down"]["readers"], {"layers.0.mlp.shared_expert.down_proj.weight"})

    def test_each_layer_of_a_hybrid_has_the_readers_of_its_kind(self):
        groups = self.golden("tiny-qwen3.5")
        self.assertEqual(groups["layers.0.qkv"]["readers"], {f"layers.0.linear_attn.in_proj_{part}.weight" for part in ("qkv", "z", "a", "b")})
        self.assertEqual(groups["layers.1.qkv"]["readers"], {f"layers.1.self_attn.{part}_proj.weight" for part in "qkv"})
        self.assertNotIn("layers.0.o", groups)

    def test_of_four_norms_the_one_before_the_mlp_is_divided(self):
        groups = self.golden("tiny-gemma4")
        self.assertEqual(groups["layers.0.gate_up"]["producers"], {"layers.0.pre_feedforward_layernorm.weight"})
        self.assertEqual(groups["layers.0.qkv"]["producers"], {"layers.0.input_layernorm.weight"})
        divided = {name for group in groups.values() if group["no_fold"] is None for name in group["producers"]}
        self.assertEqual({name for name in divided if "post_" in name}, set())

    def test_keys_that_are_values_are_never_divided(self):
        groups = self.golden("tiny-gemma4-moe")
        readers = {name for group in groups.values() for name in group["readers"]}
        self.assertIn("layers.0.self_attn.v_proj.weight", readers)
        self.assertNotIn("layers.1.self_attn.v_proj.weight", readers)  # there is none
        divided = {name for group in groups.values() if group["no_fold"] is None for name in group["producers"]}
        self.assertEqual({name for name in divided if "self_attn" in name}, set())

    def test_a_norm_whose_output_is_added_is_never_divided(self):
        layer = "model.layers.0"
        shapes = {**ends(HIDDEN, VOCABULARY), **attention(layer, HIDDEN, HEADS, KV_HEADS, HEAD), **mlp(f"{layer}.mlp", HIDDEN, INNER),
                  f"{layer}.post_attention_layernorm.weight": (HIDDEN,), f"{layer}.post_feedforward_layernorm.weight": (HIDDEN,),
                  f"{layer}.self_attn.q_norm.weight": (HEADS * HEAD,), f"{layer}.self_attn.k_norm.weight": (KV_HEADS * HEAD,)}
        groups = self.groups({"architectures": ["Olmo2ForCausalLM"], "num_hidden_layers": 1, **SIZES}, shapes)
        self.assertEqual({name for name, group in groups.items() if group["no_fold"] is None}, {"layers.0.down", "layers.0.o"})


if __name__ == "__main__":
    unittest.main()
