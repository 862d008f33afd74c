"""Every command of the program in README and docs does what it is there for: run as written, on small models in place of the reader's."""
import re
import shlex
import unittest

from jobs import CALIB, ROOT, SHORT_SEARCH, TINY, JobTest

DOCUMENTS = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
WALKTHROUGH = "docs/walkthrough.md"  # of a real model: tests/interop/check_walkthrough.py
COMMAND = re.compile(r"^    (?:mpirun -np \d+ |srun --mpi=pmix )?(?:build/cpu/bin/)?quantmill (.*?)(?:\s+#.*)?$", re.MULTILINE)
INLINE = re.compile(r"`(?:mpirun -np \d+ )?quantmill ((?:plan|convert|verify|inspect|diff|report|stats|recipe|arch) [^`]*)`")
# What sentences name in passing: no whole command. Those of an imatrix are run by imatrix.py.
PARTS = re.compile(r"…|COMMAND|^stats (?:import|show)$|^stats [A-Z]|^recipe (?:list|check)$|^plan --json$|^arch list$|\[|^stats$|^recipe$|^inspect$|imatrix|\|")


class DocumentCommands(JobTest):
    def commands(self):
        for name in DOCUMENTS:
            if name == WALKTHROUGH:
                continue
            text = (ROOT / name).read_text()
            found = [(match.start(), match[1]) for match in COMMAND.finditer(text) if not re.search("imatrix", match[1])]
            found += [(match.start(), match[1]) for match in INLINE.finditer(text) if not PARTS.search(match[1])]
            for _, command in sorted(found):
                yield name, command

    def substitute(self, command, out):
        """Words of the command, with files that are there."""
        given = {"MODEL_DIR": TINY, "MODEL": TINY, "DRAFTER": TINY, "SRC": TINY, "FOLDER": self.made, "OUT": out, "OUT_DIR": out,
                 "A": self.made, "B": self.other, "OLD": self.made, "NEW": self.other, "FILE": self.folder / "calib.h5",
                 "calib": CALIB, "calib.h5": self.folder / "calib.h5", "a.h5": self.folder / "calib.h5", "b.h5": self.folder / "calib.h5",
                 "more.h5": self.folder / "calib.h5", "all.h5": self.folder / "all.h5", "SCHEME": "fp8-channel",
                 "NAME": "int4-g32" if "--recipe" not in command else "mxfp4-fast"}
        if "--tensor" in command:
            given["NAME"] = "fc.weight"
        words = shlex.split(command)
        return [str(given.get(word, word)) for word in words]

    def test_every_command_runs(self):
        self.made = self.quantize(*SHORT_SEARCH, out=self.folder / "made")
        self.other = self.quantize(*SHORT_SEARCH, "--keep", "fc", out=self.folder / "other")
        self.assertEqual(self.run_program("stats", "import", CALIB, "-o", self.folder / "calib.h5").returncode, 0)
        seen = []
        for number, (name, command) in enumerate(self.commands()):
            command = command.split(" | ")[0].split(")")[0]  # what it is piped to, and a process substitution, are the shell's
            makes = command.split()[0] in ("quantize", "convert", "plan")
            words = self.substitute(command, self.folder / f"new{number}" if makes else self.made)
            if words[:2] in (["stats", "import"], ["stats", "merge"]):
                words[-1] = self.folder / f"new{number}.h5"
            if words[0] in ("quantize", "plan") and "--stats" in words:
                words += SHORT_SEARCH
            with self.subTest(document=name, command=command):
                result = self.run_program(*words)
                self.assertIn(result.returncode, (0, 1) if words[0] == "diff" else (0,), f"{words}\n{result.stdout}{result.stderr}")
            seen.append(words[0])
        self.assertGreater(len(seen), 25)
        self.assertEqual({"quantize", "plan", "convert", "verify", "stats", "man", "report", "inspect", "diff"} - set(seen), set())


if __name__ == "__main__":
    unittest.main()
