"""jobs/slurm/quantize.sbatch on a real Slurm cluster of two nodes (both this machine)."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import slurm_cluster

ROOT = pathlib.Path(os.environ["QUANTMILL_SOURCE_DIR"])
TINY = ROOT / "tests/golden/dflash2-tiny"
QUANTMILL = os.environ["QUANTMILL"]


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Quantize(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.cluster = slurm_cluster.SlurmCluster(nodes=2)
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def submit(self, layout, *arguments):
        """Exit status and log of the job."""
        log = self.folder / f"{self.id()}.log"
        done = subprocess.run(
            ["sbatch", "--wait", "--mem-per-cpu=500M", f"--output={log}", *layout,
             str(ROOT / "jobs/slurm/quantize.sbatch"), *map(str, arguments)],
            cwd=self.folder, env={**self.cluster.environment, "QUANTMILL": QUANTMILL}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=180, check=False)
        text = log.read_text() if log.exists() else f"no log; sbatch said {done.stdout}{done.stderr}"
        return done.returncode, f"{text}\n{self.cluster.logs() if done.returncode else ''}"

    def test_two_nodes_give_the_bytes_of_one_process(self):
        stats = TINY / "calib/calib"
        subprocess.run([QUANTMILL, "quantize", TINY / "sharded", self.folder / "alone", "--stats", stats],
                       check=True, capture_output=True, timeout=120)
        want = files_of(self.folder / "alone")
        status, log = self.submit(["--nodes=2", "--ntasks-per-node=2"], TINY / "sharded", self.folder / "slurm",
                                  "--stats", stats)
        self.assertEqual(status, 0, log)
        got = files_of(self.folder / "slurm")
        self.assertEqual(sorted(got), sorted(want))
        self.assertEqual([name for name in want if got[name] != want[name]], [])

    def test_a_refusal_is_the_exit_status_of_the_job_and_leaves_nothing(self):
        status, log = self.submit(["--nodes=2", "--ntasks-per-node=1"], TINY, self.folder / "refused",
                                  "--stats", TINY / "hostile/missing_layer")
        self.assertEqual(status, 3, log)
        self.assertEqual(log.count("layers.1.mlp.down_proj"), 1, log)
        self.assertEqual(list(self.folder.glob("*refused*")), [])


if __name__ == "__main__":
    reason = slurm_cluster.unavailable()
    if reason:
        sys.exit(f"no Slurm cluster can be started: {reason}")
    unittest.main()
