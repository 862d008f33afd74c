"""A mixture of experts whose scales are searched in two rounds, since a group of it has many weights: on any ranks, killed and resumed."""
import json
import re
import sys
import unittest

import numpy as np

from jobs import ROOT, PreparedTest, hashes, kill, processes_of, start_job, wait_for_journal, write_safetensors

sys.path.insert(0, str(ROOT / "scripts"))
from make_demo_drafter import write_torch_archive  # noqa: E402

# Gate and up of all experts are 128 Mi weights: two chunks.
HIDDEN, EXPERT, EXPERTS, HEADS, HEAD, VOCAB = 1024, 8192, 8, 8, 128, 64
CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN, "num_hidden_layers": 1,
          "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD, "vocab_size": VOCAB, "intermediate_size": EXPERT,
          "moe_intermediate_size": EXPERT, "num_experts": EXPERTS, "num_experts_per_tok": 2, "tie_word_embeddings": False}
PARTS = {"gate": (EXPERT, HIDDEN), "up": (EXPERT, HIDDEN), "down": (HIDDEN, EXPERT)}


def make_model(folder):
    random = np.random.default_rng(11)
    some = (random.standard_normal(EXPERT * HIDDEN, "f4") * 0.05).view("<u4") >> 16

    def weights(*shape):  # quickly: the same numbers, begun elsewhere
        return "BF16", np.roll(some, int(random.integers(some.size)))[:np.prod(shape)].astype("<u2").reshape(shape)

    at = "model.layers.0."
    shapes = {"model.embed_tokens": (VOCAB, HIDDEN), "lm_head": (VOCAB, HIDDEN), "model.norm": (HIDDEN,), at + "input_layernorm": (HIDDEN,),
              at + "post_attention_layernorm": (HIDDEN,), at + "self_attn.q_norm": (HEAD,), at + "self_attn.k_norm": (HEAD,),
              at + "mlp.gate": (EXPERTS, HIDDEN), **{f"{at}self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in "qkvo"}}
    shapes |= {f"{at}mlp.experts.{expert}.{part}_proj": shape for expert in range(EXPERTS) for part, shape in PARTS.items()}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_safetensors(folder / "model.safetensors", {name + ".weight": weights(*shape) for name, shape in shapes.items()})
    return folder


def make_statistics(prefix):
    random = np.random.default_rng(12)
    inputs = {"self_attn.q_proj": HIDDEN, "self_attn.o_proj": HIDDEN, "mlp.gate": HIDDEN}
    inputs |= {f"mlp.experts.{expert}.down_proj": EXPERT for expert in range(EXPERTS)}
    records = {}
    for name, size in inputs.items():
        absmean = np.exp(1.5 * random.standard_normal(size)).astype("<f4")
        records["layers.0." + name] = {"absmean": absmean, "sqmean": 2 * absmean**2, "absmax": 8 * absmean, "count": 4096}
    write_torch_archive(prefix.parent / f"{prefix.name}.tp0.pt", records)
    return prefix


class Chunks(PreparedTest):
    def prepare(self):
        type(self).model = make_model(self.folder / "model")
        type(self).stats = make_statistics(self.folder / "calib")
        type(self).wanted = hashes(self.quantize("--threads", 1, source=self.model, stats=self.stats))

    def test_ranks_threads_and_nodes_give_the_same_bytes(self):
        for ranks, *options in ((2, "--threads", 1), (3, "--threads", 2, "--ranks-per-node", 1)):
            with self.subTest(ranks=ranks):
                self.assertEqual(hashes(self.quantize(*options, ranks=ranks, source=self.model, stats=self.stats)), self.wanted)

    def test_a_killed_search_goes_on(self):
        for ranks, others in ((1, 2), (2, 1)):
            with self.subTest(ranks=ranks):
                out = self.folder / f"out{ranks}"
                job = start_job(ranks, self.model, out, "--stats", self.stats, "--threads", "1", "--checkpoint-interval", "0")
                wait_for_journal(out, minimum=10)
                kill(processes_of(job.pid))
                job.communicate(timeout=60)
                again = self.run_program("quantize", self.model, out, "--stats", self.stats, "--threads", "1", "--resume", ranks=others)
                self.assertEqual(again.returncode, 0, again.stderr)
                done, tasks = map(int, re.search(r"resumed: (\d+) of (\d+) search tasks", again.stderr).groups())
                self.assertGreater(done, 0)
                self.assertLess(done, tasks)
                self.assertEqual(hashes(out), self.wanted)


if __name__ == "__main__":
    unittest.main()
