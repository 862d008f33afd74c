"""quantmill report says what is in the folder: expected values are counted here, with numpy and the tables of the formats."""
import json
import math
import shutil
import unittest

import numpy as np

from jobs import RUN_RECORD, hashes, read_folder
from report_models import ReportTest

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]  # OCP MX 1.0, 5.3.3
DOWN = "model.layers.2.mlp.experts.3.down_proj.weight"


class Report(ReportTest):
    def prepare(self):
        super().prepare()
        type(self).found = self.report_json(self.out, "--stats", self.folder / "calib")

    def tensor(self, name):
        return next(tensor for tensor in self.found["tensors"] if tensor["name"] == name)

    def test_codes_and_scales_are_counted(self):
        stored = read_folder(self.out)
        codes = stored[DOWN][1]
        magnitudes = np.array(E2M1)[np.stack([codes & 7, codes >> 4 & 7])]
        tensor = self.tensor(DOWN)
        self.assertAlmostEqual(tensor["largest_share"], (magnitudes == 6).mean())
        self.assertAlmostEqual(tensor["zero_share"], (magnitudes == 0).mean())
        exponents = stored[DOWN + "_scale"][1].astype(int) - 127
        self.assertEqual(tensor["scale_exponents"], [exponents.min(), exponents.max()])
        self.assertEqual((tensor["shape"], tensor["layer"], tensor["kind"]), ([64, 96], 2, "mlp.experts.down_proj"))
        names = [entry["name"] for entry in self.found["tensors"] if entry["scheme"] == "mxfp4"]
        counts = dict.fromkeys(E2M1, 0)
        scales = {}
        for name in names:
            for code, count in zip(*np.unique(np.stack([stored[name][1] & 7, stored[name][1] >> 4 & 7]), return_counts=True)):
                counts[E2M1[code]] += int(count)
            for exponent, count in zip(*np.unique(stored[name + "_scale"][1], return_counts=True)):
                scales[int(exponent) - 127] = scales.get(int(exponent) - 127, 0) + int(count)
        self.assertEqual(self.found["codes"]["mxfp4"]["magnitudes"], [[magnitude, count] for magnitude, count in counts.items()])
        self.assertEqual(self.found["codes"]["mxfp4"]["scale_exponents"], [[exponent, scales[exponent]] for exponent in sorted(scales)])
        self.assertEqual(self.found["codes"]["mxfp4"]["elements"], sum(counts.values()))

    def test_codes_of_six_bits_are_unpacked(self):
        """Four codes in three bytes, the first in the lowest bits."""
        stored = read_folder(self.out)
        name = "model.layers.1.self_attn.k_proj.weight"
        triples = stored[name][1].reshape(-1, 3).astype(np.uint32)
        words = triples[:, 0] | triples[:, 1] << 8 | triples[:, 2] << 16
        codes = np.stack([words >> shift & 31 for shift in (0, 6, 12, 18)])
        self.assertAlmostEqual(self.tensor(name)["largest_share"], (codes == 31).mean())
        self.assertAlmostEqual(self.tensor(name)["zero_share"], (codes == 0).mean())
        self.assertEqual(self.found["codes"]["mxfp6-e2m3"]["magnitudes"][-1][0], 7.5)

    def test_codes_of_eight_bits_are_counted_by_powers_of_two(self):
        stored = read_folder(self.other)
        name = "model.layers.0.self_attn.q_proj.weight"
        codes = stored[name][1] & 127
        found = self.report_json(self.other)
        tensor = next(tensor for tensor in found["tensors"] if tensor["name"] == name)
        self.assertAlmostEqual(tensor["largest_share"], (codes == 0x7e).mean())
        self.assertEqual(found["codes"]["fp8-channel"]["magnitudes"][-1][0], 256)

    def test_sizes_and_errors_are_those_of_the_files(self):
        stored = read_folder(self.out)
        size = sum(array.nbytes for _, array in stored.values())
        self.assertEqual(sum(self.found["bytes_by_type"]["after"].values()), size)
        source = read_folder(self.model)
        parameters = sum(array.size for _, array in source.values())
        summary = self.found["summary"]
        self.assertEqual(summary["parameters"], parameters)
        self.assertEqual(self.found["bytes_by_type"]["before"], {"BF16": 2 * parameters})
        self.assertAlmostEqual(summary["bits_per_weight"], 8 * size / parameters)
        self.assertEqual(summary["quantized_tensors"], 80)  # 24 experts of three, 2 layers of four; layer 0's attention is kept
        manifest = json.loads((self.out / "quantmill_manifest.json").read_text())
        for entry, tensor in zip(manifest["tensors"], self.found["tensors"]):
            self.assertEqual((entry["name"], entry["relative_error"]), (tensor["name"], tensor["relative_error"]))
            self.assertAlmostEqual(tensor["snr_db"], -20 * math.log10(entry["relative_error"]))
        self.assertEqual(summary["worst_error"], max(entry["relative_error"] for entry in manifest["tensors"]))

    def test_errors_are_weighted_by_what_the_columns_are_multiplied_by(self):
        """Once more in numpy, without folding: sqrt(sum (w (q - x))^2 / sum (w x)^2) with w = sqrt(E[x^2])."""
        out = self.quantize("--scheme", "int4-g32", "--scale-rule", "mse", "--fold-scales", "off", source=self.model, stats=self.stats)
        manifest = json.loads((out / "quantmill_manifest.json").read_text())
        found = {entry["name"]: entry for entry in manifest["tensors"]}
        plain = self.quantize("--scheme", "f32", "--scaling", "none", source=out, stats=None)
        weights, decoded = read_folder(self.model), read_folder(plain)
        for name in ("model.layers.2.self_attn.o_proj.weight", "model.layers.0.mlp.experts.3.down_proj.weight"):
            x = (weights[name][1].astype("<u4") << 16).view("<f4").astype(float)
            q = decoded[name][1].astype(float)
            squares = self.sqmean[name.removeprefix("model.").removesuffix(".weight")].astype(float)
            w = np.sqrt(np.maximum(squares, 1e-6 * squares.mean()))
            wanted = math.sqrt((((q - x) * w) ** 2).sum() / ((x * w) ** 2).sum())
            self.assertAlmostEqual(found[name]["activation_weighted_error"], wanted, delta=1e-5 * wanted)
            self.assertNotAlmostEqual(found[name]["activation_weighted_error"], found[name]["relative_error"], places=5)
        of_report = {tensor["name"]: tensor["activation_weighted_error"] for tensor in self.report_json(out)["tensors"]}
        self.assertEqual(of_report, {name: entry["activation_weighted_error"] for name, entry in found.items()})
        self.assertEqual({tensor["activation_weighted_error"] for tensor in self.report_json(self.other)["tensors"]}, {None})

    def test_groups_have_gain_tokens_and_the_spread_of_s(self):
        groups = {group["name"]: group for group in self.found["groups"]}
        few = groups["layers.1.experts.5.down"]
        self.assertEqual((few["tokens"], few["weighted_error"], few["s"]), (7, None, [1, 1, 1, 1, 1]))
        self.assertIn("fewer than 32 tokens", few["not_scaled"])
        self.assertEqual(few["expert_of"], "layers.1.experts.#.down")
        manifest = json.loads((self.out / "quantmill_manifest.json").read_text())
        chosen = unscaled = 0
        for entry in manifest["fold_groups"]:
            if entry["not_scaled"] is None:
                neutral = entry["errors"][entry["alphas"].index(0)]
                chosen, unscaled = chosen + min(entry["errors"]), unscaled + neutral
                group = groups[entry["name"]]
                self.assertAlmostEqual(group["weighted_error"], min(entry["errors"]) / neutral)
                self.assertAlmostEqual(group["s"][0], entry["s_min"])
                self.assertAlmostEqual(group["s"][4], entry["s_max"])
                self.assertEqual(group["alpha"], entry["alpha"])
        self.assertAlmostEqual(self.found["summary"]["weighted_error"], chosen / unscaled)
        scaled = sum(group["channels"] for group in self.found["groups"] if group["not_scaled"] is None)
        self.assertEqual(sum(self.found["scale_histogram"]["counts"]), scaled)

    def test_a_channel_that_stands_out_is_named(self):
        first = self.found["outliers"][0]
        self.assertEqual((first["input"], first["largest_channel"], first["measure"]), ("layers.2.self_attn.o_proj", 17, "mean |x|"))
        self.assertGreater(first["largest_to_median"], 900)
        of_the_job = self.report_json(self.out)["outliers"][0]  # from what the job weighted columns by
        self.assertEqual((of_the_job["input"], of_the_job["largest_channel"], of_the_job["measure"]), ("layers.2.o", 17, "rms x"))

    def test_what_was_kept_has_a_reason(self):
        kept = {entry["why"]: entry["names"] for entry in self.found["kept"]}
        self.assertEqual(kept["pattern *layers.0.self_attn.*"],
                         [f"model.layers.0.self_attn.{name}_proj.weight" for name in ("q", "k", "v", "o")])
        self.assertIn("model.layers.2.self_attn.k_norm.weight", kept["a norm"])
        self.assertIn("model.layers.1.mlp.gate.weight", kept["a matrix that servers read unquantized"])
        stored = read_folder(self.out)
        kept_bytes = {entry["why"]: entry["size_bytes"] for entry in self.found["kept"]}
        self.assertEqual(kept_bytes["a norm"], sum(stored[name][1].nbytes for name in kept["a norm"]))

    def test_peak_memory_is_the_programs_own(self):
        """Not that of what started it, which the kernel counts too until exec."""
        large = np.ones(400 << 20, np.uint8)
        out = self.quantize("--scaling", "none", "--scale-rule", "even", source=self.model, stats=None)
        peak = json.loads((out / "quantmill_run.json").read_text())["peak_memory_bytes"][0]
        self.assertLess(peak, large.nbytes)
        self.assertGreater(peak, 1 << 20)

    def test_the_run_is_recorded_beside_what_never_differs(self):
        run = json.loads((self.out / RUN_RECORD).read_text())
        self.assertEqual((run["ranks"], run["nodes"], run["resumed"]), (2, 1, False))
        self.assertEqual(len(run["peak_memory_bytes"]), 2)
        self.assertGreater(min(run["peak_memory_bytes"]), 1 << 20)
        self.assertEqual([phase["name"] for phase in run["phases"]], ["plan", "search", "measure", "write"])
        self.assertEqual(set(run["worker_seconds"]), {"read", "decode", "search", "encode", "write", "wait"})
        self.assertIn("--scale-rule", run["command"])
        self.assertGreaterEqual(run["bytes_written"], (self.out / "model.safetensors").stat().st_size)
        self.assertEqual(self.found["run"], run)
        manifest = json.loads((self.out / "quantmill_manifest.json").read_text())
        self.assertNotIn(RUN_RECORD, [file["name"] for file in manifest["files"]])
        self.assertEqual(self.run_program("verify", self.out).returncode, 0)

    def test_the_record_of_a_source_is_not_taken_over(self):
        again = self.quantize("--scheme", "bf16", "--scaling", "none", source=self.out, stats=None)
        self.assertEqual(json.loads((again / RUN_RECORD).read_text())["ranks"], 1)

    def test_without_a_record_the_rest_is_told(self):
        out = self.folder / "moved"
        shutil.copytree(self.out, out)
        (out / RUN_RECORD).unlink()
        self.assertRegex(self.report(out, "--text"), "how long it took is not known")
        self.assertIsNone(self.report_json(out)["run"])

    def test_text_names_the_worst_and_makes_no_page(self):
        before = sorted(path.name for path in self.shared.iterdir())
        wanted = hashes(self.out)
        text = self.report(self.out, "--text")
        worst = max(self.found["tensors"], key=lambda tensor: tensor["relative_error"])
        self.assertRegex(text, rf"largest relative weight error.*\n +{worst['name']} +{worst['relative_error']:.4f}")
        self.assertRegex(text, r"kept unquantized, and why\n( +.*\n)* .* 4 tensors  pattern \*layers\.0\.self_attn\.\*\n")
        self.assertRegex(text, r"inputs with channels that stand out\n  layers\.2\.o .* channel 17 \(rms x\)\n")
        self.assertEqual(sorted(path.name for path in self.shared.iterdir()), before)
        self.assertEqual(hashes(self.out), wanted)

    def test_the_page_lies_beside_the_folder_and_holds_the_report(self):
        out = self.folder / "a <i>&amp;"  # a name must not become markup
        shutil.copytree(self.out, out)
        self.assertIn("page: ", self.report(out / "."))
        page = (self.folder / "a <i>&amp;.report.html").read_text()
        self.assertIn("<title>a &lt;i&gt;&amp;amp;</title>", page)
        data = page.split('<script type="application/json" id="data">')[1].split("</script>")[0]
        self.assertNotIn("<", data)
        self.assertEqual(json.loads(data)[0]["summary"], self.found["summary"])

    def test_two_reports_are_compared(self):
        both = self.report_json(self.out, self.other)
        self.assertEqual((both["a"]["name"], both["b"]["name"]), ("mixed", "fp8"))
        text = self.report(self.out, self.other, "--text")
        self.assertRegex(text, r'scheme: "mxfp4" \| "fp8-channel"')
        self.assertRegex(text, "80 of 84 tensors differ in their error")

    def test_what_is_no_output_is_refused(self):
        self.assert_refused(self.run_program("report", self.model), 3, "quantmill_manifest.json", "not written by quantmill")
        self.assert_refused(self.run_program("report", self.out, "--json", "--text"), 2, "--text")
        broken = self.folder / "broken"
        shutil.copytree(self.out, broken)
        (broken / RUN_RECORD).write_text("{")
        self.assert_refused(self.run_program("report", broken), 3, RUN_RECORD)


if __name__ == "__main__":
    unittest.main()
