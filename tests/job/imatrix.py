"""stats import of llama.cpp's importance matrices: names, experts, tokens; what is refused."""
import unittest

import h5py
import numpy as np

from any_model import EXPERT, EXPERTS, HEAD, HEADS, HIDDEN, LAYERS, Model, save
from family_headers import save_sparse
from imatrix_files import gguf, imatrix_dat, imatrix_gguf
from jobs import GOLDEN, PreparedTest

TOKENS = 480
REACHED = [300, 0, 660]  # tokens of each expert


def sums_of_model():
    """What a recorder that names weights as llama.cpp does has of the model's inputs: sums of x^2, tokens."""
    random = np.random.default_rng(3)

    def squares(channels, tokens):
        means = np.exp(random.standard_normal((len(tokens), channels)))
        return means * np.asarray(tokens).reshape(-1, 1), tokens

    sums = {"token_embd.weight": squares(HIDDEN, [TOKENS]), "output.weight": squares(HIDDEN, [TOKENS])}
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        attention = squares(HIDDEN, [TOKENS])
        sums |= {f"{at}attn_{part}.weight": attention for part in "qkv"}
        sums[at + "attn_output.weight"] = squares(HEADS * HEAD, [TOKENS])
        sums[at + "ffn_gate_inp.weight"] = squares(HIDDEN, [TOKENS])
        hidden = squares(HIDDEN, REACHED)
        sums |= {f"{at}ffn_{part}_exps.weight": hidden for part in ("gate", "up")}
        sums[at + "ffn_down_exps.weight"] = squares(EXPERT, REACHED)
    return sums


def means(sums, name, expert=0):
    squares, tokens = sums[name]
    return squares[expert] / max(tokens[expert], 1)


class Imatrix(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.model = save(self.folder / "model", Model().tensors)
        cls.sums = sums_of_model()

    def write(self, data, name="imatrix.gguf"):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def imported(self, data, name="imatrix.gguf"):
        out = self.folder / "imported.h5"
        result = self.run_program("stats", "import", self.write(data, name), "--model", self.model, "-o", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        with h5py.File(out) as file:
            records = {name: (group["sqmean"][:], group["absmean"][:], group.attrs.get("count"))
                       for name, group in file["inputs"].items()}
        return records, result.stdout, out

    def test_gguf(self):
        records, told, out = self.imported(imatrix_gguf(self.sums))
        self.assertEqual(len(records), 1 + LAYERS * (3 + EXPERTS), sorted(records))
        for name, weight, expert in (("self_attn.qkv_proj", "attn_q", 0), ("self_attn.o_proj", "attn_output", 0),
                                     ("mlp.gate_up_proj", "ffn_gate_inp", 0), ("mlp.experts.0.down_proj", "ffn_down_exps", 0),
                                     ("mlp.experts.2.down_proj", "ffn_down_exps", 2)):
            wanted = means(self.sums, f"blk.1.{weight}.weight", expert)
            squares, magnitudes, count = records["layers.1." + name]
            np.testing.assert_allclose(squares, wanted, rtol=1e-6)
            np.testing.assert_allclose(magnitudes, np.sqrt(wanted / 2), rtol=1e-6)
            self.assertEqual(count, REACHED[expert] if "experts." in name else TOKENS)
        self.assertEqual(records["layers.0.mlp.experts.1.down_proj"][2], 0)
        self.assertIn("1 weights of the imatrix are not used: token_embd.weight", told)
        self.assertNotIn("inputs are not in it", told)
        result = self.run_program("quantize", self.model, self.folder / "out", "--stats", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"layers\.0\.experts\.1\.down.*fewer than 32 tokens")

    def test_only_experts_saw_the_router_s_input(self):
        """Their sums over all tokens that they saw."""
        sums = {name: value for name, value in self.sums.items() if "gate_inp" not in name}
        records, _, _ = self.imported(imatrix_gguf(sums))
        squares, tokens = sums["blk.0.ffn_gate_exps.weight"]
        record = records["layers.0.mlp.gate_up_proj"]
        np.testing.assert_allclose(record[0], squares.sum(0) / sum(tokens), rtol=1e-6)
        self.assertEqual(record[2], sum(tokens))

    def test_dat(self):
        for trailer in (True, False):
            records, _, out = self.imported(imatrix_dat(self.sums, trailer=trailer), "imatrix.dat")
            np.testing.assert_allclose(records["layers.1.self_attn.o_proj"][0], means(self.sums, "blk.1.attn_output.weight"), rtol=1e-6)
            np.testing.assert_allclose(records["layers.1.mlp.experts.2.down_proj"][0],
                                       means(self.sums, "blk.1.ffn_down_exps.weight", 2), rtol=1e-6)
            self.assertIsNone(records["layers.1.self_attn.o_proj"][2])
            self.assertEqual(records["layers.1.mlp.experts.1.down_proj"][2], 0)  # all zero: no token came
            out.unlink()

    def test_latent_attention(self):
        """DeepSeek's: the input of kv_b_proj takes the sums of attn_v_b, and the program says so."""
        folder = save_sparse(self.folder / "deepseek", GOLDEN / "families" / "deepseek-v2-lite.json")
        rank, heads, hidden = 512, 16, 2048
        values = np.random.default_rng(4).uniform(1, 9, (heads, rank))
        sums = {"blk.3.attn_v_b.weight": (values * TOKENS, [TOKENS] * heads),
                "blk.3.attn_kv_a_mqa.weight": (np.full((1, hidden), 2.0 * TOKENS), [TOKENS])}
        out = self.folder / "deepseek.h5"
        result = self.run_program("stats", "import", self.write(imatrix_gguf(sums)), "--model", folder, "-o", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"1 inputs took the sums of something alike: \S+ from blk\.3\.attn_v_b\.weight")
        self.assertRegex(result.stdout, r"[0-9]+ inputs are not in it: final, layers\.0\.qkv")
        with h5py.File(out) as file:
            np.testing.assert_allclose(file["inputs/layers.3.self_attn.kv_b_proj/sqmean"][:], values.mean(0), rtol=1e-6)
            self.assertEqual(len(file["inputs"]), 2)

    def refused(self, data, status, *words, options=None):
        result = self.run_program("stats", "import", self.write(data), *(options or ["--model", self.model]),
                                  "-o", self.folder / "none.h5")
        self.assert_refused(result, status, *words)
        self.assertFalse((self.folder / "none.h5").exists())

    def test_refused(self):
        good = imatrix_gguf(self.sums)
        self.refused(good, 2, "--model", options=["--arch", "llama"])
        self.refused(good[:-200], 3, "imatrix.gguf", "outside the file")
        self.refused(good[:100], 3, "36 tensors, but only 84 bytes")
        self.refused(good[:1000], 3, "cut short")
        self.refused(gguf({}, kind="model"), 3, "general.type", "imatrix")
        self.refused(b"GGUF" + good[4:].replace(good[4:8], b"\1\0\0\0", 1), 3, "version 1")
        self.refused(good[:8] + b"\xff" * 8 + good[16:], 3, "tensors", "bytes follow")
        self.refused(gguf({"blk.0.attn_q.weight.in_sum2": np.ones((1, HIDDEN))}), 3, "attn_q", "counts")
        self.refused(imatrix_gguf({"blk.0.attn_q.weight": (np.ones((2, HIDDEN)), [1])}), 3, "2 matrices", "1 counts")
        self.refused(imatrix_gguf({"blk.0.attn_q.weight": (np.full((1, HIDDEN), np.nan), [1])}), 3, "attn_q", "nan")
        self.refused(imatrix_gguf({"blk.0.attn_q.weight": (np.full((1, HIDDEN), -1), [1])}), 3, "attn_q", "-1")
        self.refused(imatrix_gguf({"blk.0.attn_q.weight": (np.ones((1, HIDDEN + 1)), [1])}), 3, "attn_q", "65", "64", "another model")
        self.refused(imatrix_gguf({"blk.0.ffn_down_exps.weight": (np.ones((2, EXPERT)), [1, 1])}), 3, "2 experts", "expert 2")
        self.refused(imatrix_gguf({"blk.9.attn_q.weight": (np.ones((1, HIDDEN)), [1])}), 3, "none of the imatrix's 1", "another model")
        self.refused(gguf({}), 3, "without entries")
        dat = imatrix_dat(self.sums)
        self.refused(dat[:-3], 3, "cut short")
        self.refused(dat + b"x", 3, "1 bytes are left over")
        self.refused(b"", 3, "cut short")
        self.refused(b"PK\3\4" + bytes(99), 3, "neither a GGUF file nor an imatrix.dat")


if __name__ == "__main__":
    unittest.main()
