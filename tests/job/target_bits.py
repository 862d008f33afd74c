"""--target-bits and --target-size: schemes chosen by measured errors, within the size that is asked for."""
import json
import unittest

import numpy as np

from any_model import Model, recorded, save, save_statistics, to_f32
from jobs import PATIENCE, SLOW, PreparedTest, hashes, kill, make_drafter, processes_of, read_folder, start_job, wait_for_journal
from schemes import decoded

UNSCALED = ("--scaling", "none", "--scale-rule", "even", "--objective", "w4a16")
FUSED = {"q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "o_proj"}


def is_linear(name):
    return name.endswith("_proj.weight")


def stored_bytes(tensors, name):
    """Of a linear's codes and scales."""
    base = name.removesuffix(".weight")
    return sum(values.nbytes for key, (_, values) in tensors.items() if key in (name, f"{base}.weight_scale"))


class TargetBits(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.tensors = Model().tensors
        cls.model = save(self.folder / "model", cls.tensors)
        cls.stats = save_statistics(self.folder / "calib")
        cls.table = self.folder / "errors.json"
        cls.first_plan = self.plan("--target-bits", 5, "--error-table", cls.table)

    def plan(self, *options, model=None, stats=True):
        options = ["--stats", self.stats, *options] if stats else options
        result = self.run_program("plan", model or self.model, self.folder / "planned", *UNSCALED, *options, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def bits_of(self, folder, linears=is_linear):
        stored = read_folder(folder)
        names = [name for name in self.tensors if linears(name)]
        return 8 * sum(stored_bytes(stored, name) for name in names) / sum(self.tensors[name][1].size for name in names)

    def schemes_of(self, plan):
        return {item["name"]: item["stored_as"] for item in plan["tensors"] if is_linear(item["name"])}

    def test_errors_are_those_of_what_each_scheme_stands_for(self):
        table = json.loads(self.table.read_text())["tensors"]
        self.assertEqual(set(table), {name for name in self.tensors if is_linear(name)})
        inputs = recorded()
        for scheme in ("mxfp4", "mxfp6-e2m3", "fp8-channel"):
            out = self.quantize(*UNSCALED, "--scheme", scheme, "--layout", "quark", source=self.model, stats=None)
            stored = read_folder(out) | {"scheme": scheme}
            for part, record in (("self_attn.k_proj", "self_attn.q_proj"), ("self_attn.o_proj",) * 2, ("mlp.experts.1.down_proj",) * 2):
                name = f"model.layers.1.{part}.weight"
                weight = to_f32(self.tensors[name][1]).astype(float)
                square = inputs[f"layers.1.{record}"]["sqmean"].astype(float)
                wanted = ((decoded(stored, name) - weight) ** 2 @ square).sum() / (weight**2 @ square).sum()
                self.assertAlmostEqual(table[name]["errors"][scheme] / table[name]["energy"] / wanted, 1, 4, f"{name} {scheme}")

    def test_the_size_is_kept_and_nearly_used(self):
        table = ("--error-table", self.table)
        for bits in (4.25, 4.5, 5.5, 7, 9):
            out = self.quantize(*UNSCALED, "--target-bits", str(bits), *table, source=self.model, stats=self.stats)
            reached = self.bits_of(out)
            self.assertLessEqual(reached, bits)
            self.assertGreater(reached, bits - 1.3)  # the largest step is a layer's experts
            target = self.plan("--target-bits", bits, *table)["target"]
            self.assertAlmostEqual(target["bits_reached"], reached, 9)
            self.assertEqual(json.loads((out / "quantmill_manifest.json").read_text())["target"], target)
        result = self.run_program("verify", out, "--against", self.model, "--function")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertRegex(self.run_program("report", out, "--no-codes").stdout, r"target: 9(\.0)? bits per weight of linears, 8\.\d+ .*reached")

    def test_what_servers_fuse_has_one_scheme_and_more_bits_never_hurt(self):
        losses = []
        for bits in np.arange(4.25, 9, 0.25):
            plan = self.plan("--target-bits", bits, "--error-table", self.table)
            fused = {}
            for name, scheme in self.schemes_of(plan).items():
                layer, part = name.split(".")[2], name.split(".")[-2]
                fused.setdefault((layer, FUSED.get(part, "experts")), set()).add(scheme)
            self.assertEqual([group for group, schemes in fused.items() if len(schemes) > 1], [], bits)
            losses.append(sum(item["target_error"] ** 2 for item in plan["tensors"] if item["chosen_by"] == "target"))
        self.assertEqual(losses, sorted(losses, reverse=True))
        self.assertLess(losses[-1], 0.1 * losses[0])
        self.assertEqual(set(self.schemes_of(self.plan("--target-bits", 4.25)).values()), {"mxfp4"})

    def test_the_plan_says_what_was_chosen(self):
        self.assertEqual({item["chosen_by"] for item in self.first_plan["tensors"] if is_linear(item["name"])}, {"target"})
        counts = {name: count["tensors"] for name, count in self.first_plan["target"]["schemes"].items()}
        named = [scheme.replace("BF16", "keep") for scheme in self.schemes_of(self.first_plan).values()]
        self.assertEqual(counts, {scheme: named.count(scheme) for scheme in named})
        result = self.run_program("plan", self.model, self.folder / "o", *UNSCALED, "--stats", self.stats, "--target-bits", "5")
        self.assertRegex(result.stdout, r"target: 5 bits per weight of linears, 4\.\d{4} reached\n  \S+ +\d+ tensors")
        self.assertRegex(result.stdout, r"q_proj\.weight .* \(quantize, by target, error 0?\.\d+\)")
        self.assertRegex(result.stderr, "plan reads the weights")

    def test_ranks_tables_and_recipes_give_the_same_bytes(self):
        asked = (*UNSCALED, "--target-bits", "5.5")
        out = self.quantize(*asked, source=self.model, stats=self.stats)
        own = self.folder / "own.json"
        self.assertEqual(hashes(self.quantize(*asked, "--error-table", own, "--memory", "200M", source=self.model, stats=self.stats, ranks=2)), hashes(out))
        self.assertEqual(own.read_bytes(), self.table.read_bytes())
        self.assertEqual(hashes(self.quantize(*asked, "--error-table", self.table, source=self.model, stats=self.stats, ranks=3)), hashes(out))
        again = self.run_program("quantize", self.model, out, "--stats", self.stats, *asked, "--resume")
        self.assertRegex(again.stdout, "nothing to do")
        recipe = self.folder / "recipe.json"
        recipe.write_text(json.dumps(json.loads((out / "quantmill_manifest.json").read_text())["recipe"]))
        copy = self.quantize("--recipe", recipe, source=self.model, stats=self.stats)
        self.assertEqual((copy / "model.safetensors").read_bytes(), (out / "model.safetensors").read_bytes())

    def test_patterns_come_first_and_count(self):
        pinned = ("--scheme-for", "*.o_proj=fp8-channel", "--keep", "*layers.0.self_attn.[qkv]_proj")
        out = self.quantize(*UNSCALED, *pinned, "--target-bits", "6", source=self.model, stats=self.stats)
        plan = {item["name"]: (item["stored_as"], item["chosen_by"]) for item in self.plan(*pinned, "--target-bits", 6)["tensors"]}
        self.assertEqual(plan["model.layers.0.self_attn.o_proj.weight"], ("fp8-channel", "*.o_proj"))
        self.assertEqual(plan["model.layers.0.self_attn.k_proj.weight"], ("BF16", "*layers.0.self_attn.[qkv]_proj"))
        counted = self.bits_of(out, lambda name: is_linear(name) and not ("layers.0" in name and name.split(".")[-2] in ("q_proj", "k_proj", "v_proj")))
        self.assertTrue(4.7 < counted <= 6, counted)

    def test_a_size_of_files(self):
        for size in (160_000, 200_000, 299_999):
            out = self.quantize(*UNSCALED, "--target-size", str(size), "--error-table", self.table, source=self.model, stats=self.stats)
            taken = sum(path.stat().st_size for path in out.glob("*.safetensors"))
            self.assertTrue(size - 40_000 < taken <= size, taken)

    def test_without_statistics_columns_count_alike(self):
        result = self.run_program("convert", self.model, self.folder / "out", "--target-bits", "5.5")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(4.5 < self.bits_of(self.folder / "out") <= 5.5)

    def test_what_can_not_be_is_refused(self):
        elsewhere = save(self.folder / "other", {**self.tensors, "extra.weight": ("BF16", np.zeros(4, "<u2"))})
        few = self.folder / "few.json"
        self.plan("--target-bits", 5, "--schemes", "mxfp4,keep", "--error-table", few)
        broken = self.folder / "broken.json"
        broken.write_text('{"error_table_schema": 1, "inputs": {}, "tensors": {"a": {"energy": -1, "errors": {}}}}')
        at_5, table = ("--target-bits", "5"), ("--error-table", self.table)
        cases = ((("--target-bits", "3"), 2, r"from 4\.2500 to 16\.0000 bits"), (("--target-bits", "17"), 2, r"from 4\.2500 to 16\.0000 bits"),
                 (("--target-size", "1000"), 2, r"takes from \d+ bytes .* to about \d+"), (("--target-size", "1G"), 2, r"takes from \d+ bytes"),
                 (("--target-bits", "five"), 2, "'five' is not a number"), (("--schemes", "mxfp4,keep"), 2, "no target"),
                 (table, 2, "serves --target-bits"), ((*at_5, "--scheme-for", "*_proj=fp8-channel"), 2, "nothing is left to choose"),
                 ((*at_5, *table, "--scale-rule", "floor"), 2, "measured for something else: recipe was"),
                 ((*at_5, *table, "--stats", self.folder / "x"), 2, "measured for something else: statistics was"),
                 ((*at_5, "--error-table", few), 2, "does not have the error of .* in mxfp6-e2m3"),
                 ((*at_5, "--error-table", broken), 3, "no error table: an error is not finite or below 0"))
        save_statistics(self.folder / "x", tokens=lambda name: 4097)
        for options, status, words in cases:
            stats = () if "--stats" in options else ("--stats", self.stats)
            with self.subTest(options=options):
                result = self.run_program("quantize", self.model, self.folder / "out", *UNSCALED[:2], *stats, *options)
                self.assert_refused(result, status, words)
        result = self.run_program("plan", elsewhere, self.folder / "out", *UNSCALED, "--allow-unknown", "--stats", self.stats, *at_5, *table)
        self.assert_refused(result, 2, "measured for something else: source model.safetensors was")
        self.assert_nothing_left(self.folder, "broken.json", "few.json", "other", "x.tp0.pt")


class Drafter(PreparedTest):
    """Servers number its layers otherwise, so that no config can name one."""

    def prepare(self):
        type(self).model, type(self).stats = make_drafter(self.folder, 0.02)

    def test_layers_are_alike_and_a_killed_job_goes_on(self):
        asked = (self.model, self.folder / "out", "--stats", self.stats, "--target-bits", "5.5")
        wanted = self.quantize("--target-bits", "5.5", source=self.model, stats=self.stats)
        plan = json.loads(self.run_program("plan", *asked, "--json").stdout)
        by_part = {}
        for item in plan["tensors"]:
            if item["chosen_by"] == "target":
                by_part.setdefault(item["name"].split(".", 2)[-1], set()).add(item["stored_as"])
        self.assertEqual([part for part, schemes in by_part.items() if len(schemes) > 1], [])
        self.assertGreater(len(set().union(*by_part.values())), 1)
        job = start_job(2, *asked, *SLOW)
        wait_for_journal(self.folder / "out", minimum=2)
        kill(processes_of(job.pid))
        job.communicate(timeout=60 * PATIENCE)
        result = self.run_program("quantize", *asked, "--resume")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"resumed: [1-9]\d* of \d+ search tasks")
        self.assertNotRegex(result.stderr, "errors of .* measured")
        self.assertEqual(hashes(self.folder / "out"), hashes(wanted))


if __name__ == "__main__":
    unittest.main()
