"""`plan` takes the options of `quantize`, refuses what it would refuse, and does nothing."""
import json
import shutil
import unittest

from jobs import CALIB, RUN_RECORD, SHORT_SEARCH, TINY, JobTest, make_drafter, read_folder


class Plan(JobTest):
    def plan(self, *args, source=TINY, out=None):
        return self.run_program("plan", source, out or self.folder / "out", *args)

    def test_it_says_what_quantize_then_does(self):
        for args in (["--stats", CALIB], ["--stats", CALIB, "--max-shard-size", "64K"], ["--scaling", "none"],
                     ["--stats", CALIB, "--layout", "plain", "--scheme", "f32", "--keep", "fc"]):
            result = self.plan(*args, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            plan = json.loads(result.stdout)
            out = self.quantize(*args, stats=None)
            self.assertEqual({file["name"]: file["bytes"] for file in plan["files"]},
                             {path.name: path.stat().st_size for path in out.glob("*.safetensors")})
            tensors = read_folder(out)
            for tensor in plan["tensors"]:
                stored = sum(tensors[name][1].nbytes for name in (tensor["name"], tensor["name"] + "_scale")
                             if name in tensors)
                self.assertEqual(stored, tensor["bytes"], tensor["name"])
            self.assertEqual(plan["source_bytes"], sum(values.nbytes for _, values in read_folder(TINY).values()))

    def test_sizes_by_role_and_type_are_those_of_the_output(self):
        sizes = json.loads(self.plan("--scaling", "none", "--keep", "*.down_proj", "--json").stdout)["sizes"]
        tensors = read_folder(self.quantize("--scaling", "none", "--keep", "*.down_proj", stats=None))
        source = read_folder(TINY)
        total = sum(values.nbytes for _, values in tensors.values())
        parameters = sum(values.size for _, values in source.values())
        self.assertEqual(sum(sizes["by_type"]["after"].values()), total)
        self.assertEqual(sum(role["after"] for role in sizes["by_role"].values()), total)
        self.assertEqual(sum(role["parameters"] for role in sizes["by_role"].values()), parameters)
        self.assertAlmostEqual(sizes["bits_per_weight"], 8 * total / parameters)
        norms = [name for name in source if "norm" in name]
        self.assertEqual(sizes["by_role"]["norms"]["before"], sum(source[name][1].nbytes for name in norms))
        kept = {entry["why"]: entry for entry in sizes["kept"]}
        down = [name for name in source if name.endswith("down_proj.weight")]
        self.assertEqual((kept["pattern *.down_proj"]["tensors"], kept["pattern *.down_proj"]["bytes"]),
                         (len(down), sum(source[name][1].nbytes for name in down)))

    def test_headers_are_enough(self):
        """Files with headers and a hole in place of the data, as a partial download extended with `truncate` gives."""
        model = self.folder / "headers"
        model.mkdir()
        (model / "config.json").write_bytes((TINY / "config.json").read_bytes())
        raw = (TINY / "model.safetensors").read_bytes()
        head = 8 + int.from_bytes(raw[:8], "little")
        with open(model / "model.safetensors", "wb") as file:
            file.write(raw[:head])
            file.truncate(len(raw))
        wanted, found = (json.loads(self.plan("--scaling", "none", "--json", source=source).stdout) for source in (TINY, model))
        for plan in (found, wanted):
            del plan["estimate"]["phases"], plan["estimate"]["seconds"], plan["estimate"]["of_each_rank"]  # of this process
        self.assertEqual(found, wanted)
        self.assert_refused(self.plan("--scaling", "none", "--measure", source=model), 2, "has a hole", "--assume")

    def test_it_changes_nothing(self):
        before = sorted(self.folder.iterdir())
        for options in (["--memory", "1G", "--threads", "3", "--overwrite", "--compat", "seed"], ["--measure", *SHORT_SEARCH]):
            result = self.plan("--stats", CALIB, *options)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_an_assumed_speed_gives_the_time(self):
        """Four cores get a thousand bytes done each, a second; the file system is slower or not."""
        def told(*speeds):
            plan = json.loads(self.plan("--scaling", "none", "--ranks", "2", "--threads", "2", "--json", "--assume", ",".join(speeds)).stdout)
            return plan["estimate"], plan["source_bytes"], plan["output_bytes"]
        estimate, source, output = told("rate=1000")
        self.assertAlmostEqual(estimate["phases"][1]["seconds"], source / 4000)
        self.assertEqual((estimate["from"], estimate["limited_by"], estimate["ranks"], estimate["threads_per_rank"]), ("assumed", "computing", 2, 2))
        self.assertEqual((estimate["bytes_read"], estimate["bytes_written"]), (source + output, output))  # without a search the source once, and what was written, to hash it
        self.assertEqual(estimate["of_each_rank"]["bytes_written"], output // 2)
        estimate = told("rate=1M", "read=100")[0]
        self.assertAlmostEqual(estimate["phases"][1]["seconds"], source / 100)
        self.assertEqual(estimate["limited_by"], "read")
        self.assertEqual(told("rate=1M", "read=1M", "write=10")[0]["limited_by"], "write")

    def test_a_measurement_is_of_every_phase(self):
        source, stats = make_drafter(self.folder, 0.01)
        out = self.folder / "out"
        for options in (["--stats", stats, *SHORT_SEARCH], ["--stats", stats, "--scheme", "nvfp4", *SHORT_SEARCH],
                        ["--scheme", "fp8-tensor", "--scaling", "none"]):
            result = self.plan(*options, "--measure", "--json", "--threads", "1", source=source, out=out)
            self.assertEqual(result.returncode, 0, result.stderr)
            plan = json.loads(result.stdout)
            estimate = plan["estimate"]
            self.quantize(*options, "--threads", "1", "--overwrite", stats=None, source=source, out=out)
            run = json.loads((out / RUN_RECORD).read_text())
            self.assertEqual([phase["name"] for phase in estimate["phases"]], [phase["name"] for phase in run["phases"]])
            self.assertEqual([phase["name"] for phase in estimate["phases"] if phase["seconds"] > 0],
                             ["plan", *(["search"] if "--stats" in options else []), *(["measure"] if "--scheme" in options else []), "write"])
            # What is read does not depend on the machine: the sample stands for all of it.
            self.assertAlmostEqual(estimate["bytes_read"] / run["bytes_read"], 1, delta=.1)
            self.assertEqual({file["name"]: file["bytes"] for file in plan["files"]},
                             {path.name: path.stat().st_size for path in out.glob("*.safetensors")})
            self.assertEqual(plan["slurm"]["assumed_bytes_per_second_and_core"], int(plan["source_bytes"] / estimate["core_seconds"]))
            shutil.rmtree(out)

    def test_the_text_tells_the_estimate(self):
        text = self.plan("--stats", CALIB, "--measure", "--threads", "1", *SHORT_SEARCH).stdout
        self.assertRegex(text, r"estimate, measured here in \d+\.\d s: \d+\.\d s on 1 rank of 1 thread\n  plan .*, search .*, write .*; most on \w+ .*\n"
                               r"  each rank reads .* and writes .*, peak memory .*MiB\n  a thread reads .*/s from files as they are now, the disk takes .*/s\n")
        self.assertRegex(text, r"under Slurm: .* of source at the measured ")
        text = self.plan("--stats", CALIB, "--threads", "1").stdout
        self.assertRegex(text, r"estimate, assumed \(--measure measures this machine, --assume tells of another\): ")

    def test_the_text_names_groups_tensors_and_reasons(self):
        text = self.plan("--stats", CALIB, "--keep", "*.down_proj").stdout
        self.assertRegex(text, r"qkv +96 channels  hidden_norm\.weight and 2 more -> layers\.0\.self_attn\.k_proj\.weight")
        self.assertRegex(text, r"layers\.0\.down .*not scaled: none of its readers is quantized")
        self.assertRegex(text, r"fc\.weight +BF16  \[96, 288\] -> mxfp4 \(quantize\)")
        self.assertRegex(text, r"layers\.0\.mlp\.down_proj\.weight +BF16 .* -> BF16 \(copy, by \*\.down_proj\)")

    def test_it_suggests_a_slurm_job(self):
        options = ["--stats", CALIB, "--memory", "1G", "--threads", "3", "--assume", "rate=10"]
        text = self.plan(*options).stdout
        size = json.loads(self.plan(*options, "--json").stdout)["source_bytes"]
        ranks = -(-(-(-size // 10)) // (1800 * 3))  # for half an hour on three cores each, 10 bytes a second a core
        self.assertGreater(ranks, 5)  # so many that a node has no room for them
        self.assertRegex(text, r"an assumed 10 B/s a core take \d+ min on 15 cores, .*--assume rate=SIZE")
        block = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
        seconds = -(-(-(-size // 10)) // 15)
        minutes = -(-(-(-2 * seconds // 60) + 10) // 5) * 5
        time = f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00" if minutes >= 1440 else \
            f"{minutes // 60:02}:{minutes % 60:02}:00"
        self.assertEqual(block, [
            "#SBATCH --job-name=quantmill", "#SBATCH --nodes=1", "#SBATCH --ntasks-per-node=5", "#SBATCH --cpus-per-task=3",
            "#SBATCH --mem=7680M", f"#SBATCH --time={time}", "#SBATCH --output=quantmill-%j.log", "#SBATCH --open-mode=append",
            "#SBATCH --requeue", "#SBATCH --signal=USR1@120"])
        told = json.loads(self.plan(*options, "--json").stdout)["slurm"]
        self.assertEqual(told, {"nodes": 1, "ntasks_per_node": 5, "cpus_per_task": 3, "mem_mib": 7680, "time_minutes": minutes,
                                "estimated_seconds": seconds, "assumed_bytes_per_second_and_core": 10,
                                "block": "\n".join(block) + "\n"})
        self.assert_refused(self.plan("--stats", CALIB, "--assume", "rate=0"), 2, "--assume rate=0 would take forever")
        self.assert_refused(self.plan("--stats", CALIB, "--assume", "speed=3"), 2, "speed=3", "read=SIZE")

    def test_it_refuses_what_quantize_would(self):
        self.assert_refused(self.plan(), 2, "--stats")
        self.assert_refused(self.plan("--stats", TINY / "hostile" / "wrong_length"), 3, "95", "96")
        self.assert_refused(self.plan("--stats", CALIB, "--memory", "1M"), 2, "--memory")
        self.assert_refused(self.plan("--stats", CALIB, out=self.folder / "no" / "out"), 4, "does not exist")
        (self.folder / "there").mkdir()
        self.assert_refused(self.plan("--stats", CALIB, out=self.folder / "there"), 2, "--overwrite")
        self.assert_refused(self.plan("--stats", CALIB, source=self.folder), 3, "safetensors")


if __name__ == "__main__":
    unittest.main()
