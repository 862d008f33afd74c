"""`verify` on several ranks and threads finds what it finds on one, says it in the same words and ends with the same status."""
import json
import shutil
import subprocess
import unittest

import numpy as np

from jobs import PATIENCE, PROGRAM, TINY, PreparedTest, copy_tiny

FILES, STRUCTURE, SOURCE = 10, 11, 12


class VerifyRanks(PreparedTest):
    def prepare(self):
        type(self).out = self.quantize("--max-shard-size", "64K", "--scaling", "awq-grid", "--scale-rule", "even",
                                       "--objective", "w4a16", out=self.folder / "quantized")

    def verify(self, out, *args, status, words=()):
        """The text, which is the same on one rank and on two, with one thread and with more."""
        one = self.run_program("verify", out, *args, "--threads", "1")
        self.assertEqual(one.returncode, status, one.stdout + one.stderr)
        for ranks, threads in ((2, 2), (0, 3)):
            other = self.run_program("verify", out, *args, "--threads", threads, ranks=ranks)
            self.assertEqual((other.returncode, other.stdout), (status, one.stdout), other.stderr)
        for word in words:
            self.assertRegex(one.stdout, word)
        return one.stdout

    def test_a_sound_one_passes_everything(self):
        text = self.verify(self.out, "--against", TINY, "--function", status=0)
        self.assertEqual([line.split()[:2] for line in text.splitlines()],
                         [["ok", name] for name in ("files:", "structure:", "source:", "function:")])

    def test_changed_files_are_told_in_order(self):
        out = self.folder / "changed"
        shutil.copytree(self.out, out)
        with open(out / "config.json", "a") as file:
            file.write(" ")
        (out / "quantmill_scales.h5").unlink()
        text = self.verify(out, status=FILES, words=[r"WRONG config\.json: \d+ bytes, the manifest says", r"quantmill_scales\.h5: the file is missing"])
        names = [line.split()[1] for line in text.splitlines() if line.startswith("WRONG") and "file" in line]
        manifest = json.loads((out / "quantmill_manifest.json").read_text())
        order = [file["name"] + ":" for file in manifest["files"]]
        self.assertEqual(names, sorted(names, key=order.index))

    def test_another_source_differs_in_many_places(self):
        def scale(tensors):
            for name, (dtype, values) in tensors.items():
                if name.endswith("proj.weight"):
                    tensors[name] = (dtype, values ^ np.uint16(0x40))
        other = copy_tiny(self.folder / "other", scale)
        text = self.verify(self.out, "--against", other, status=SOURCE)
        lines = [line for line in text.splitlines() if line.startswith("WRONG tensor")]
        self.assertGreater(len(lines), 5)

    def test_structure_has_a_status_of_its_own(self):
        out = self.folder / "odd"
        shutil.copytree(self.out, out)
        manifest = json.loads((out / "quantmill_manifest.json").read_text())
        lost = manifest["tensors"].pop(3)["name"]
        (out / "quantmill_manifest.json").write_text(json.dumps(manifest))
        self.verify(out, status=STRUCTURE, words=[rf"WRONG tensor {lost}: quantized, but the manifest does not list it"])

    def test_refusals_are_one_message(self):
        for ranks in (0, 2):
            self.assert_refused(self.run_program("verify", TINY, ranks=ranks), 3, "quantmill_manifest.json")
            self.assert_refused(self.run_program("verify", self.out, "--function", ranks=ranks), 2, "--against")


class FullOutput(PreparedTest):
    """What can't be printed is an error, whatever prints it."""

    def prepare(self):
        type(self).out = self.quantize("--scaling", "none", "--scale-rule", "even", stats=None, out=self.folder / "quantized")

    def test_every_command_that_prints(self):
        for command in (["plan", TINY, self.folder / "new", "--scaling", "none"], ["verify", self.out], ["report", self.out, "--text"],
                        ["inspect", self.out], ["diff", self.out, self.out], ["recipe", "list"], ["recipe", "show", "int8"],
                        ["arch", "list"], ["man"], ["completion", "bash"], ["--version"], ["--help"],
                        ["convert", TINY, self.folder / "converted", "--scheme", "bf16"]):
            with self.subTest(command=command[0]), open("/dev/full", "w") as full:
                result = subprocess.run([PROGRAM, *map(str, command)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300 * PATIENCE,
                                        stdin=subprocess.DEVNULL)
                self.assertEqual(result.returncode, 4, result.stderr)
                self.assertIn("cannot write to the standard output", result.stderr)


if __name__ == "__main__":
    unittest.main()
