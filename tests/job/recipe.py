"""quantmill recipe: built-in recipes, and what a recipe comes to."""
import json
import re
import unittest

from jobs import CALIB, TINY, JobTest


class Recipe(JobTest):
    def recipe(self, *args):
        result = self.run_program("recipe", *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def origins(self, *args):
        """setting -> (value, where it comes from)"""
        lines = [re.fullmatch(r"(\S+) +(.*?)  +(\S.*)", line) for line in self.recipe("show", *args).splitlines()]
        return {line[1]: (json.loads(line[2]), line[3]) for line in lines}

    def test_every_built_in_recipe_plans_a_job(self):
        names = [line.split()[0] for line in self.recipe("list").splitlines()]
        self.assertEqual(names[:3], ["mxfp4-default", "mxfp4-fast", "mxfp4-best"])
        for name in names:
            self.assertEqual(self.recipe("check", name), f"{name}: in order\n")
            shown = json.loads(self.recipe("show", name, "--json"))
            self.assertTrue(name.startswith(shown["scheme"]))
            if "128" in name or shown["scheme"] in ("fp8-block", "fp8-tensor"):
                continue  # its blocks do not divide the small model's columns
            result = self.run_program("plan", TINY, self.folder / "out", "--recipe", name, "--scaling", "none", "--scale-rule", "even",
                                      "--rounding", "nearest",
                                      *(["--objective", "w4a16"] if shown["objective"] == "w4a4" else []))
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_default_recipe_is_what_is_done_where_nothing_is_said(self):
        self.assertEqual(json.loads(self.recipe("show", "mxfp4-default", "--json")), json.loads(self.recipe("show", "--json")))

    def test_the_best_recipe_needs_gram_matrices(self):
        self.assertEqual(self.origins("mxfp4-best")["rounding"], ("gptq", "recipe mxfp4-best"))
        for command in ("plan", "quantize"):
            self.assert_refused(self.run_program(command, TINY, self.folder / "out", "--recipe", "mxfp4-best", "--stats", CALIB), 2,
                                "--rounding gptq", "scripts/collect --gram")

    def test_each_value_says_where_it_comes_from(self):
        file = self.folder / "mine.json"
        file.write_text(json.dumps({"scheme": "fp8-channel", "keep": ["*.o_proj"], "min_tokens": 64}))
        found = self.origins(file, "--min-tokens", "8", "--scheme-for", "*.down_proj=keep")
        self.assertEqual(found["scheme"], ("fp8-channel", f"recipe {file}"))
        self.assertEqual(found["keep"], (["*.o_proj"], f"recipe {file}"))
        self.assertEqual(found["min_tokens"], (8, "--min-tokens"))
        self.assertEqual(found["schemes"], ([{"match": "*.down_proj", "scheme": "keep"}], "--scheme-for"))
        self.assertEqual(found["layout"], ("compressed-tensors", "follows from scheme fp8-channel in layout compressed-tensors, scaling awq-grid"))
        self.assertEqual(found["fold_scales"], ("exact", "default"))
        self.assertEqual(self.origins("mxfp4-best", "--rounding", "nearest")["rounding"], ("nearest", "--rounding"))
        self.assertEqual(self.origins("--arch", "dflash2", "--untie")["architecture"], ("dflash2", "--arch"))
        self.assertEqual(self.origins("--arch", "dflash2", "--untie")["untie"], (True, "--untie"))
        self.assertEqual(self.origins("--target-bits", "5", "--schemes", "mxfp4,keep")["target_schemes"], (["mxfp4", "keep"], "--schemes"))
        file.write_text(json.dumps({"target_bits": 5, "chosen": {"fc.weight": "keep"}}))
        self.assertEqual(self.origins(file)["chosen"], ({"fc.weight": "keep"}, f"recipe {file}"))
        plain = self.origins()
        self.assertEqual(plain["scaling"], ("block-grid", "follows from scheme mxfp4 in layout quark, scaling block-grid"))
        self.assertEqual(plain["scheme"], ("mxfp4", "default"))

    def test_what_it_shows_is_what_a_job_does(self):
        shown = self.folder / "shown.json"
        shown.write_text(self.recipe("show", "mxfp4-fast", "--keep", "fc", "--json"))
        out = self.quantize("--recipe", shown)
        other = self.quantize("--recipe", "mxfp4-fast", "--keep", "fc")
        self.assertEqual((out / "model.safetensors").read_bytes(), (other / "model.safetensors").read_bytes())
        self.assertEqual(json.loads((out / "quantmill_manifest.json").read_text())["recipe"]["keep"], ["fc"])

    def test_what_is_wrong_is_named(self):
        file = self.folder / "wrong.json"
        file.write_text('{"scheme": "mxfp5"}')
        self.assert_refused(self.run_program("recipe", "check", file), 2, "mxfp5", "mxfp4")
        file.write_text('{"colour": 1}')
        self.assert_refused(self.run_program("recipe", "check", file), 2, "unknown key", "colour")
        self.assert_refused(self.run_program("recipe", "show", "mxfp9"), 2, "mxfp9: neither a file nor", "mxfp4-fast")
        self.assert_refused(self.run_program("recipe", "show", "--layout", "fp8", "--scheme", "int8"), 2, "int8")


if __name__ == "__main__":
    unittest.main()
