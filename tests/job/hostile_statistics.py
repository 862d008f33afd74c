"""Each statistics file of golden/dflash2-tiny/hostile gets the outcome that its table states, alone and under mpirun."""
import shutil
import unittest

from jobs import TINY, JobTest

HOSTILE = TINY / "hostile"
QKV = r"layers\.0\.self_attn\.qkv_proj"
DOWN = r"layers\.1\.mlp\.down_proj"

WORKS = ["good", "zero_channel", "count_zero"]
REFUSED = {  # name -> words of the message
    "evil_os_system_zip": ["tp0", "posix|os"],
    "evil_os_system_legacy": ["tp0", "zip"],
    "evil_os_system_plain_pickle": ["tp0", "zip"],
    "evil_builtins_eval": ["tp0", "eval"],
    "evil_inst_opcode": ["tp0", "INST|opcode"],
    "evil_stack_global": ["tp0", "posix"],
    "truncated_zip": ["tp0"],
    "empty_file": ["tp0"],
    "not_a_pt": ["tp0"],
    "no_pickle": ["tp0", "data.pkl"],
    "storage_missing": ["tp0"],
    "storage_short": ["tp0"],
    "storage_long": ["tp0"],
    "view_out_of_bounds": ["tp0"],
    "crc_mismatch": ["tp0", "CRC|checksum"],
    "big_endian_mark": ["tp0", "big"],
    "pickle_deep_nesting": ["tp0"],
    "pickle_huge_binunicode": ["tp0"],
    "pickle_memo_bomb": ["tp0"],
    "missing_layer": [DOWN],
    "missing_layer_one_rank": [DOWN, "tp1|rank 1|part 1"],
    "no_absmean": [QKV, "absmean"],
    "replicated_differs": [QKV],
    "nan": [QKV, "3", "nan"],
    "inf_sharded": [DOWN, "0", "inf"],
    "negative": [QKV, "3", "-1"],
    "wrong_length": [QKV, "95", "96"],
    "wrong_length_shard": [DOWN, "255", "256"],
    "two_dims": [QKV],
    "integer_dtype": [QKV],
}


class Hostile(JobTest):
    def prepare(self, name):
        """A prefix with both parts; tp1 is good.tp1.pt where the case has none."""
        shutil.copy(HOSTILE / f"{name}.tp0.pt" if (HOSTILE / f"{name}.tp0.pt").exists() else HOSTILE / "good.tp0.pt",
                    self.folder / f"{name}.tp0.pt")
        second = HOSTILE / f"{name}.tp1.pt"
        shutil.copy(second if second.exists() else HOSTILE / "good.tp1.pt", self.folder / f"{name}.tp1.pt")
        return self.folder / name

    def check(self, name, ranks):
        prefix = self.prepare(name)
        before = sorted(path.name for path in self.folder.iterdir())
        result = self.run_program("quantize", TINY, self.folder / "out", "--stats", prefix, ranks=ranks)
        self.assertFalse((self.folder / "PICKLE_WAS_EXECUTED").exists())
        if name in WORKS:
            self.assertEqual(result.returncode, 0, result.stderr)
            shutil.rmtree(self.folder / "out")
            return result
        self.assert_refused(result, 3, *REFUSED[name])
        self.assert_nothing_left(self.folder, *before)
        return result

    def test_every_file_has_a_stated_outcome(self):
        names = {path.name.rsplit(".tp", 1)[0] for path in HOSTILE.iterdir()}
        self.assertEqual(names, {*WORKS, *REFUSED})

    def test_alone(self):
        for name in [*WORKS, *REFUSED]:
            with self.subTest(name):
                self.check(name, 0)

    def test_on_two_ranks(self):
        for name in [*WORKS, *REFUSED]:
            with self.subTest(name):
                self.check(name, 2)

    def test_an_input_without_tokens_is_named_and_stays_unscaled(self):
        self.assertRegex(self.check("count_zero", 2).stderr, r"not scaled: layers\.1\.down \(fewer than 32 tokens")


if __name__ == "__main__":
    unittest.main()
