"""--memory bounds what a rank holds, also where tensors are many and small; with too little the job is refused before it starts."""
import math
import os
import re
import unittest

from headers import attention, ends, mlp, norms, write_headers
from jobs import CALIB, PROGRAM, TINY, PreparedTest

MIB = 1 << 20
HIDDEN, LAYERS, EXPERTS = 32, 4, 2500
# Beside --memory, as docs/speed.md promises.
MARGIN = 64 * MIB


def make_experts(folder):
    """30,000 tensors of 2 KiB."""
    shapes = ends(HIDDEN, 64)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= attention(at, HIDDEN, 2, 2, 16) | norms(at, HIDDEN)
        shapes |= {f"{at}.self_attn.{name}_norm.weight": [16] for name in "qk"} | {f"{at}.mlp.gate.weight": [EXPERTS, HIDDEN]}
        for expert in range(EXPERTS):
            shapes |= mlp(f"{at}.mlp.experts.{expert}", HIDDEN, 32)
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
              "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64, "intermediate_size": 32,
              "moe_intermediate_size": 32, "num_experts": EXPERTS, "num_experts_per_tok": 2, "tie_word_embeddings": False}
    return write_headers(folder, config, shapes)


class Memory(PreparedTest):
    def prepare(self):
        type(self).source = make_experts(self.folder / "experts")

    def command(self, memory, out):
        return ["quantize", self.source, out, "--scaling", "none", "--threads", "1", "--memory", memory]

    def needed(self):
        """What the refusal of too little says, as an option."""
        out = self.folder / "out"
        refused = self.run_program(*self.command("66M", out))
        self.assert_refused(refused, 2, "--memory 66.0 MiB is too little", "MiB of it are the model's tensors")
        self.assertFalse(out.exists())
        return math.ceil(float(re.search(r"([\d.]+) MiB is needed", refused.stderr)[1]) + .1)

    def test_too_little_is_refused_and_what_is_needed_is_enough(self):
        needed = self.needed()
        out = self.folder / "out"
        pid = os.posix_spawn(PROGRAM, [PROGRAM, *map(str, self.command(f"{needed}M", out)), "--quiet"], os.environ)
        _, status, usage = os.wait4(pid, 0)
        self.assertEqual(status, 0)
        self.assertLess(usage.ru_maxrss * 1024, needed * MIB + MARGIN)
        # 4.3 kB a tensor, as before, would be more than this.
        self.assertLess(usage.ru_maxrss * 1024, 66 * MIB + MARGIN + 1000 * 30_000)

    def test_plan_refuses_it_too(self):
        self.assert_refused(self.run_program("plan", *self.command("66M", self.folder / "out")[1:]), 2, "--memory 66.0 MiB is too little")

    def test_statistics_count(self):
        """They are held all the time: of a model whose tensors take nothing, the difference is theirs."""
        said = []
        for more in (["--scaling", "none"], ["--stats", CALIB]):
            refused = self.run_program("quantize", TINY, self.folder / "out", *more, "--threads", "1", "--memory", "1M")
            self.assert_refused(refused, 2, "is needed")
            said.append(re.search(r"threads; ([\d.]+ \w+) of it", refused.stderr)[1])
        self.assertNotEqual(*said)


if __name__ == "__main__":
    unittest.main()
