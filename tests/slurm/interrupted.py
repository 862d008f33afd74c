"""jobs/slurm/quantize.sbatch when it is interrupted: it goes back into the queue, resumes, and ends with the same bytes."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

import slurm_cluster
from jobs import hashes

ROOT = pathlib.Path(os.environ["QUANTMILL_SOURCE_DIR"])
QUANTMILL = os.environ["QUANTMILL"]
# Slow enough to be interrupted, and every task made durable by itself.
SLOW = ["--backend", "reference", "--threads", "1", "--checkpoint-interval", "0"]


class Interrupted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.model, cls.stats = cls.folder / "drafter", cls.folder / "calib"
        subprocess.run([sys.executable, ROOT / "scripts/make_demo_drafter.py", cls.folder, "--gigabytes", "0.05"],
                       check=True, capture_output=True)
        subprocess.run([QUANTMILL, "quantize", cls.model, cls.folder / "alone", "--stats", cls.stats],
                       check=True, capture_output=True, timeout=120)
        cls.wanted = hashes(cls.folder / "alone")
        cls.cluster = slurm_cluster.SlurmCluster(nodes=2)
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def slurm(self, *command):
        return subprocess.run([str(word) for word in command], env={**self.cluster.environment, "QUANTMILL": QUANTMILL},
                              cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True)

    def submit(self):
        """Starts a job and waits until it has made some work durable."""
        self.out, self.log = self.folder / self._testMethodName, self.folder / f"{self._testMethodName}.log"
        said = self.slurm("sbatch", "--mem-per-cpu=500M", f"--output={self.log}", "--nodes=1", "--ntasks-per-node=2",
                          ROOT / "jobs/slurm/quantize.sbatch", self.model, self.out, "--stats", self.stats, *SLOW).stdout
        self.job = re.search(r"\d+", said).group()
        work = self.folder / f".{self.out.name}.quantmill-work"
        self.wait_for("a first task", lambda: sum(path.stat().st_size for path in work.glob("journal.*")) > 200)

    def wait_for(self, what, condition, seconds=90):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.fail(f"no {what} in {seconds} s:\n{self.log.read_text() if self.log.exists() else ''}\n{self.cluster.logs()}")

    def state(self):
        return re.search(r"JobState=(\w+)", self.slurm("scontrol", "show", "job", self.job).stdout).group(1)

    def assert_resumes(self):
        """From the queue to the end; Slurm lets a requeued job wait for two minutes, the test does not."""
        self.wait_for("job in the queue again", lambda: self.state() == "PENDING")
        self.slurm("scontrol", "update", f"JobId={self.job}", "StartTime=now")
        self.wait_for("end of the job", lambda: self.state() in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"))
        log = self.log.read_text()
        self.assertEqual(self.state(), "COMPLETED", log)
        self.assertRegex(log, r"resumed: [1-9]\d* of \d+ search tasks")
        self.assertEqual(hashes(self.out), self.wanted)
        return log

    def test_the_warning_before_the_time_limit(self):
        self.submit()
        self.slurm("scancel", "--signal=USR1", self.job)  # what --signal=USR1@120 does, without the wait
        log = self.assert_resumes()
        self.assertEqual(len(re.findall(r"^quantmill: .*stopped by SIGUSR1", log, re.M)), 1, log)
        self.assertIn("back into the queue", log)

    def test_a_preempted_job(self):
        self.submit()
        self.slurm("scontrol", "requeue", self.job)
        self.assert_resumes()

    def test_z_a_node_that_is_lost(self):  # last: the cluster has one node less afterwards
        self.submit()
        node = re.search(r"NodeList=(node\d)", self.slurm("scontrol", "show", "job", self.job).stdout).group(1)
        self.cluster.lose_node(node, self.job)
        self.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        self.assert_resumes()

    def test_a_cancelled_job_resumes_when_it_is_submitted_again(self):
        self.submit()
        self.slurm("scancel", self.job)
        self.wait_for("end of the job", lambda: self.state() == "CANCELLED")
        again = self.slurm("sbatch", "--wait", "--mem-per-cpu=500M", f"--output={self.log}", "--nodes=1", "--ntasks-per-node=2",
                           ROOT / "jobs/slurm/quantize.sbatch", self.model, self.out, "--stats", self.stats)
        self.assertEqual(again.returncode, 0)
        self.assertRegex(self.log.read_text(), r"resumed: [1-9]")
        self.assertEqual(hashes(self.out), self.wanted)


if __name__ == "__main__":
    reason = slurm_cluster.unavailable()
    if reason:
        sys.exit(f"no Slurm cluster can be started: {reason}")
    unittest.main()
