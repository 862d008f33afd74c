"""The output is the same bytes whatever the ranks, threads, nodes, instruction set, memory and form of the statistics."""
import unittest
from pathlib import Path

from jobs import CALIB, TINY, JobTest, PreparedTest, hashes


class SameBytes(PreparedTest):
    def prepare(self):
        """The output that all others are compared with."""
        type(self).wanted = hashes(self.quantize("--threads", 1, "--backend", "reference"))

    def assert_same(self, *args, **kwargs):
        self.assertEqual(hashes(self.quantize(*args, **kwargs)), self.wanted)

    def test_ranks(self):
        for ranks in (1, 2, 3, 4, 7):
            with self.subTest(ranks=ranks):
                self.assert_same("--threads", 1, ranks=ranks)

    def test_threads(self):
        for threads in (1, 2, 3, 4):
            with self.subTest(threads=threads):
                self.assert_same("--threads", threads)
        self.assert_same("--threads", 3, ranks=2)

    def test_several_nodes(self):
        self.assert_same("--threads", 1, "--ranks-per-node", 1, ranks=3)
        self.assert_same("--threads", 1, "--ranks-per-node", 2, ranks=4)

    def test_instruction_sets(self):
        flags = Path("/proc/cpuinfo").read_text()
        for isa, flag in (("plain", ""), ("avx2", "avx2"), ("avx512", "avx512dq")):
            if flag in flags:
                with self.subTest(isa=isa):
                    self.assert_same(env={"QUANTMILL_FORCE_ISA": isa})

    def test_little_memory(self):
        self.assert_same("--memory", "65M", "--threads", 1)

    def test_statistics_in_one_and_in_four_parts(self):
        self.assert_same(stats=CALIB.with_name("calib1"))
        self.assert_same(stats=CALIB.with_name("calib4"), ranks=2)

    def test_statistics_from_hdf5(self):
        stored = self.folder / "calib.h5"
        imported = self.run_program("stats", "import", CALIB, "-o", stored)
        self.assertEqual(imported.returncode, 0, imported.stderr)
        self.assert_same(stats=stored, ranks=2)

    def test_twice(self):
        self.assert_same()


class SourceForms(JobTest):
    def test_sharded_source_gives_the_same_tensors(self):
        from jobs import read_folder
        whole = read_folder(self.quantize())
        parts = read_folder(self.quantize(source=TINY / "sharded", ranks=3))
        self.assertEqual(whole.keys(), parts.keys())
        for name in whole:
            self.assertEqual(whole[name][0], parts[name][0], name)
            self.assertTrue((whole[name][1] == parts[name][1]).all(), name)

    def test_sharded_output_does_not_depend_on_ranks_and_nodes(self):
        one = hashes(self.quantize(source=TINY / "sharded"))
        several = hashes(self.quantize("--ranks-per-node", 2, source=TINY / "sharded", ranks=4))
        self.assertEqual(one, several)
        cut = hashes(self.quantize("--max-shard-size", "64K"))
        self.assertGreater(len(cut), 4)
        self.assertEqual(cut, hashes(self.quantize("--max-shard-size", "64K", "--ranks-per-node", 1, ranks=3)))


if __name__ == "__main__":
    unittest.main()
