"""The scripts in jobs/slurm on a real Slurm cluster of two nodes (both this machine)."""

import re
import subprocess

import slurm_cluster
from slurm_cluster import QUANTMILL, ROOT, SCRIPTS

TINY = ROOT / "tests/golden/dflash2-tiny"
CALIB = TINY / "calib/calib"


def files_of(folder):
    """All but the record of the run, which differs from run to run."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and path.name != "quantmill_run.json"}


class Quantize(slurm_cluster.ClusterTest):
    @classmethod
    def prepare(cls):
        cls.wanted = {}
        for model in (TINY, TINY / "sharded"):
            out = cls.folder / f"alone-{model.name}"
            subprocess.run([QUANTMILL, "quantize", model, out, "--stats", CALIB], check=True, capture_output=True, timeout=120)
            cls.wanted[model] = files_of(out)

    def assert_made(self, out, model):
        got, want = files_of(out), self.wanted[model]
        self.assertEqual(sorted(got), sorted(want))
        self.assertEqual([name for name in want if got[name] != want[name]], [])

    def submit(self, layout, *arguments, script=SCRIPTS / "quantize.sbatch"):
        """Exit status and log of the job."""
        log = self.folder / f"{self.id()}.log"
        done = self.slurm("sbatch", "--wait", f"--output={log}", *layout, script, *arguments, check=False, seconds=180)
        text = log.read_text() if log.exists() else f"no log; sbatch said {done.stdout}{done.stderr}"
        return done.returncode, f"{text}\n{self.cluster.logs() if done.returncode else ''}"

    def test_two_nodes_give_the_bytes_of_one_process(self):
        status, log = self.submit(["--nodes=2", "--ntasks-per-node=2", "--mem-per-cpu=500M"], TINY / "sharded",
                                  self.folder / "slurm", "--stats", CALIB)
        self.assertEqual(status, 0, log)
        self.assert_made(self.folder / "slurm", TINY / "sharded")

    def test_a_rank_for_each_gpu(self):
        status, log = self.submit(["--nodes=1", "--gpus-per-node=2", "--ntasks-per-node=2", "--mem-per-cpu=500M"], TINY,
                                  self.folder / "gpus", "--stats", CALIB)
        self.assertEqual(status, 0, log)
        self.assertIn("2 ranks on 1 nodes", log)
        self.assert_made(self.folder / "gpus", TINY)

    def test_a_refusal_is_the_exit_status_of_the_job_and_leaves_nothing(self):
        status, log = self.submit(["--nodes=2", "--ntasks-per-node=1", "--mem-per-cpu=500M"], TINY, self.folder / "refused",
                                  "--stats", TINY / "hostile/missing_layer")
        self.assertEqual(status, 3, log)
        self.assertEqual(log.count("layers.1.mlp.down_proj"), 1, log)
        self.assertEqual(list(self.folder.glob("*refused*")), [])

    def test_the_lines_that_plan_suggests(self):
        out = self.folder / "suggested"
        options = [TINY, out, "--stats", CALIB, "--memory", "256M"]
        plan = subprocess.run([QUANTMILL, "plan", *options], check=True, capture_output=True, text=True, timeout=60).stdout
        lines = re.findall(r"^#SBATCH .*$", plan, re.M)
        old = (SCRIPTS / "quantize.sbatch").read_text()
        pasted = re.sub(r"(^#SBATCH .*\n)+", "\n".join(lines) + "\n", old, count=1, flags=re.M)
        self.assertNotEqual(pasted, old)
        self.assertEqual(re.findall(r"^#SBATCH .*$", pasted, re.M), lines)
        script = self.folder / "pasted.sbatch"
        script.write_text(pasted)
        tested = self.slurm("sbatch", "--test-only", script, *options)
        self.assertRegex(tested.stderr, r"Job \d+ to start at .* using 1 processors")
        status, log = self.submit([], *options, script=script)
        self.assertEqual(status, 0, log)
        self.assert_made(out, TINY)

    def test_the_script_that_records_statistics_is_one_that_slurm_takes(self):
        tested = self.slurm("sbatch", "--test-only", "--cpus-per-task=1", "--mem=500M", SCRIPTS / "collect.sbatch", "MODEL", "text", "-o", "calib")
        self.assertRegex(tested.stderr, r"Job \d+ to start at .* using 1 processors")

    def test_many_models_and_a_check_of_each(self):
        models = {self.folder / "made-1": TINY, self.folder / "made-2": TINY / "sharded", self.folder / "made-3": TINY}
        (self.folder / "list").write_text("".join(
            f"{model} {out} --stats {CALIB if out.name != 'made-3' else TINY / 'hostile/missing_layer'}\n"
            for out, model in models.items()))
        said = self.slurm(SCRIPTS / "submit_many", "list", "--ntasks-per-node=1", "--mem-per-cpu=500M", "--",
                          "--cpus-per-task=1", "--mem=500M").stdout
        quantize, verify = re.fullmatch(r"quantize: job (\d+), verify: job (\d+), 3 models\n", said).groups()
        for job, element, state in ((quantize, 1, "COMPLETED"), (quantize, 2, "COMPLETED"), (quantize, 3, "FAILED"),
                                    (verify, 1, "COMPLETED"), (verify, 2, "COMPLETED"), (verify, 3, "CANCELLED")):
            self.wait_for(f"element {element} of job {job} {state}", lambda: self.state(f"{job}_{element}") == state,
                          log=self.folder / f"quantmill-{quantize}_{element}.log")
        for out in list(models)[:2]:
            self.assert_made(out, models[out])
        self.assertFalse((self.folder / "made-3").exists())
        logs = "".join(log.read_text() for log in self.folder.glob("quantmill-verify-*.log"))
        self.assertEqual(logs.count("every byte"), 2, logs)
        self.assertNotIn("WRONG", logs)
        self.assertNotEqual(self.slurm(SCRIPTS / "submit_many", "no such list", check=False).returncode, 0)


if __name__ == "__main__":
    slurm_cluster.main()
