"""jobs/slurm/quantize.sbatch when it is interrupted: it goes back into the queue, resumes, and ends with the same bytes."""

import os
import re
import subprocess
import sys
import time

import slurm_cluster
from jobs import SHORT_SEARCH, hashes
from slurm_cluster import QUANTMILL, ROOT, SCRIPTS

FAULTS = os.environ["QUANTMILL_FAULTS"]
# Slow enough to be interrupted, and every task made durable by itself.
SLOW = ["--backend", "reference", "--threads", "1", "--checkpoint-interval", "0"]


class Interrupted(slurm_cluster.ClusterTest):
    @classmethod
    def prepare(cls):
        cls.model, cls.stats = cls.folder / "drafter", cls.folder / "calib"
        subprocess.run([sys.executable, ROOT / "scripts/make_demo_drafter.py", cls.folder, "--gigabytes", "0.05"],
                       check=True, capture_output=True)
        subprocess.run([QUANTMILL, "quantize", cls.model, cls.folder / "alone", "--stats", cls.stats, *SHORT_SEARCH],
                       check=True, capture_output=True, timeout=120)
        cls.wanted = hashes(cls.folder / "alone")

    def submit(self, *options, program=QUANTMILL):
        """Starts a job and waits until it has made some work durable."""
        self.out, self.log = self.folder / self._testMethodName, self.folder / f"{self._testMethodName}.log"
        said = self.slurm("sbatch", "--mem-per-cpu=500M", f"--output={self.log}", "--nodes=1", "--ntasks-per-node=2", *options,
                          SCRIPTS / "quantize.sbatch", self.model, self.out, "--stats", self.stats, *SHORT_SEARCH, *SLOW,
                          program=program).stdout
        self.job = re.search(r"\d+", said).group()
        work = self.folder / f".{self.out.name}.quantmill-work"
        self.wait_for("a first task", lambda: sum(path.stat().st_size for path in work.glob("journal.*")) > 200, log=self.log)

    def assert_resumes(self):
        """From the queue to the end; Slurm lets a requeued job wait for two minutes, the test does not."""
        self.wait_for("job in the queue again", lambda: self.state(self.job) == "PENDING", log=self.log)
        self.slurm("scontrol", "update", f"JobId={self.job}", "StartTime=now")
        self.wait_for("end of the job", lambda: self.state(self.job) in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"),
                      log=self.log)
        log = self.log.read_text()
        self.assertEqual(self.state(self.job), "COMPLETED", log)
        self.assertRegex(log, r"resumed: [1-9]\d* of \d+ search tasks")
        self.assertEqual(hashes(self.out), self.wanted)
        return log

    def test_the_warning_before_the_time_limit(self):
        self.submit()
        self.slurm("scancel", "--signal=USR1", self.job)  # what --signal=USR1@120 does, without the wait
        log = self.assert_resumes()
        self.assertEqual(len(re.findall(r"^quantmill: .*stopped by SIGUSR1", log, re.M)), 1, log)
        self.assertIn("back into the queue", log)

    def test_the_time_limit_itself(self):
        """A limit of one minute, Slurm's smallest, for a job that takes longer; prints what a user sees."""
        begun = time.monotonic()
        self.submit("--time=1", "--signal=USR1@30", program=self.make_slow())
        self.transcript("squeue", "--Format=JobID:6,State:12,TimeUsed:10,TimeLimit:12,NumNodes:7,RestartCnt:15")
        self.wait_for("warning by Slurm", lambda: "stopped by SIGUSR1" in self.log.read_text(), seconds=150, log=self.log)
        self.assertLess(time.monotonic() - begun, 110)  # not the end of the work
        self.wait_for("job in the queue again", lambda: self.state(self.job) == "PENDING", log=self.log)
        self.transcript("squeue", "--Format=JobID:6,State:12,TimeLimit:12,RestartCnt:15,Reason:20")
        log = self.assert_resumes()
        self.transcript("scontrol", "show", "job", self.job)
        self.transcript("sacct", "--completion", "--format=jobid,jobname,state")
        self.assertIn("back into the queue (restarts so far: 0)", log)
        print(f"$ cat {self.log.name}\n{log}")

    def make_slow(self):
        """A program that is slow until its job is in the queue again: every read of the model takes four seconds."""
        slow = self.folder / "slow"  # until it is in the queue again, every read of the model takes four seconds
        slow.write_text('#!/bin/sh\n[ -n "$SLURM_RESTART_COUNT" ] || export LD_PRELOAD=' + FAULTS +
                        ' FAULT_RULES="read drafter/model.safetensors slow 9+"\nexec ' + QUANTMILL + ' "$@"\n')
        slow.chmod(0o755)
        return slow

    def test_a_job_that_is_killed_at_its_limit_resumes_when_it_is_submitted_again(self):
        self.submit("--time=1", "--signal=B:CONT@60", program=self.make_slow())  # no warning
        self.wait_for("end of the job", lambda: self.state(self.job) == "TIMEOUT", seconds=180, log=self.log)
        print(self.log.read_text())
        self.slurm("sbatch", "--wait", "--mem-per-cpu=500M", f"--output={self.log}", "--nodes=1", "--ntasks-per-node=2",
                   SCRIPTS / "quantize.sbatch", self.model, self.out, "--stats", self.stats, *SHORT_SEARCH)
        self.assertRegex(self.log.read_text(), r"resumed: [1-9]")
        self.assertEqual(hashes(self.out), self.wanted)

    def transcript(self, *command):
        done = self.slurm(*command, check=False)
        print(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")

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
        self.wait_for("end of the job", lambda: self.state(self.job) == "CANCELLED", log=self.log)
        again = self.slurm("sbatch", "--wait", "--mem-per-cpu=500M", f"--output={self.log}", "--nodes=1", "--ntasks-per-node=2",
                           SCRIPTS / "quantize.sbatch", self.model, self.out, "--stats", self.stats, *SHORT_SEARCH)
        self.assertEqual(again.returncode, 0)
        self.assertRegex(self.log.read_text(), r"resumed: [1-9]")
        self.assertEqual(hashes(self.out), self.wanted)


if __name__ == "__main__":
    slurm_cluster.main()
