"""What the program says of itself agrees with itself: --help, manual page, completion, README."""
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from jobs import PATIENCE, PROGRAM, ROOT, JobTest

sys.path += [str(ROOT / "tests" / part) for part in ("bench", "quality", "support")]
import methods  # noqa: E402
import quality_report  # noqa: E402


class Documentation(JobTest):
    def text(self, *args):
        result = self.run_program(*args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def commands(self, *words):
        """Every command with sub-commands, as lists of words, from --help."""
        found = []
        listed = self.text(*words, "--help").split("Subcommands:\n")
        for line in listed[1].splitlines() if len(listed) > 1 else []:
            name = re.match(r"  (\w+)", line)
            if name:
                found += [[*words, name[1]], *self.commands(*words, name[1])]
        return found

    def options(self, words):
        return set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", self.text(*words, "--help"), re.MULTILINE))

    def test_the_manual_page_has_every_command_and_option(self):
        page = self.text("man")
        self.assertTrue(page.startswith(".TH QUANTMILL 1"))
        sections = dict(re.findall(r"^\.SS quantmill (.*)\n((?:.|\n)*?)(?=^\.SS |\Z)", page.replace("\\-", "-"), re.MULTILINE))
        commands = self.commands()
        self.assertGreater(len(commands), 15)
        self.assertEqual(set(sections), {" ".join(words) for words in commands})
        for words in commands:
            self.assertEqual(set(re.findall(r"(--[\w-]+)", "\n".join(re.findall(r"^\.B (.*)$", sections[" ".join(words)], re.MULTILINE)))),
                             self.options(words), words)
        for line in page.splitlines():  # nothing of a description is taken for an instruction
            self.assertRegex(line, r"^(?:[^.']|\.(?:TH|SH|SS|TP|PP|B|I)\b|$)")

    def complete(self, *words):
        script = 'source <("$QUANTMILL" completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _quantmill 2>/dev/null; printf "%s\\n" "${COMPREPLY[@]}"'
        result = subprocess.run(["bash", "-c", script, "bash", "quantmill", *words], capture_output=True, text=True, timeout=60 * PATIENCE,
                                env={**os.environ, "QUANTMILL": PROGRAM})
        self.assertEqual(result.returncode, 0, result.stderr)
        return set(result.stdout.split())

    def test_bash_completes_commands_and_options(self):
        self.assertEqual(self.complete("qua"), {"quantize"})
        self.assertEqual(self.complete("re"), {"report", "recipe"})
        self.assertEqual(self.complete("recipe", ""), {"list", "check", "show", "-h", "--help"})
        self.assertEqual(self.complete("quantize", "SRC", "OUT", "--scale"), {"--scale-rule", "--scale-type", "--scales"})
        self.assertEqual(self.complete("stats", "import", "x", "--o"), {"--output"})

    def test_every_option_that_the_readme_lists_exists(self):
        table = re.search(r"## Options of quantize and plan\n(.*?)\n\n", (ROOT / "README.md").read_text(), re.DOTALL)[1]
        listed = {name for line in table.splitlines() for name in re.findall(r"--[a-z][\w-]*", line.split("|")[1])}
        known = self.options(["quantize"]) - {"--help"}
        self.assertEqual(listed - known, set())
        self.assertEqual(known - listed, {"--ranks-per-node"})  # for tests

    def test_every_command_in_the_documents_exists(self):
        commands = {" ".join(words) for words in self.commands()}
        documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
        used = 0
        for document in documents:
            for line in re.findall(r"(?:^    |`)(?:mpirun -np \d+ )?(?:\S*/)?quantmill ((?:[a-z-]+ ?)+)", Path(document).read_text(), re.MULTILINE):
                words = line.split()
                self.assertTrue(any(" ".join(words[:count]) in commands for count in (1, 2)), f"{document.name}: quantmill {line}")
                used += 1
        self.assertGreater(used, 15)

    def test_every_message_in_troubleshooting_is_one_of_the_program(self):
        sources = "\n".join(path.read_text() for top in ("src", "jobs") for path in sorted((ROOT / top).rglob("*.cpp")))
        said = re.sub(r'"\s*\n\s*"', "", sources)  # a literal in several pieces is one
        headings = re.findall(r"^### (`.*)$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
        self.assertGreater(len(headings), 20)
        for heading in headings:
            if "enough slots" in heading:  # Open MPI's own
                continue
            for message in re.findall(r"`([^`]+)`", heading):
                for piece in message.split("…"):
                    self.assertIn(piece.strip(), said, heading)

    def test_every_recipe_in_the_documents_exists(self):
        names = {line.split()[0] for line in self.text("recipe", "list").splitlines()}
        table = (ROOT / "docs/choosing.md").read_text().split("| recipe |")[1].split("\n\n")[0]
        named = set(re.findall(r"`([a-z0-9-]+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:])))
        self.assertGreater(len(named), 6)
        self.assertEqual(named - names, set())

    def test_the_quality_page_has_every_method(self):
        tables = (ROOT / "docs/quality.md").read_text().split(quality_report.BEGIN)[1].split(quality_report.END)[0]
        for name in methods.TABLE:
            self.assertTrue(f"\n| {quality_report.title(name)} |" in tables, f"{name}: tests/quality/run --write-documents")

    def test_methods_of_the_quality_page_are_recipes_and_options(self):
        for method in methods.METHODS.values():
            if method.program == "quantmill":
                options = [option for option in method.options if option != "--recipe"]
                self.assertIn("mxfp4", self.text("recipe", "show", *options))

    def test_the_version_comes_first(self):
        lines = self.text("--version").splitlines()
        self.assertRegex(lines[0], r"^quantmill \d+\.\d+\.\d+$")
        self.assertRegex(lines[1], r"^built by (g\+\+|clang) \d+")
        self.assertRegex(lines[2], r"^this machine: backend cpu \((plain|avx2|avx512)\)$")


if __name__ == "__main__":
    unittest.main()
