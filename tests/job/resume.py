"""A job that is killed or stopped goes on with --resume, on any number of ranks, and ends with the same bytes."""
import fcntl
import os
import random
import re
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from jobs import CALIB, PROGRAM, ROOT, TINY, JobTest, copy_tiny, hashes, kill, processes_of

# Random kills; CRASH_RUNS=200 is the long form.
RUNS = int(os.environ.get("CRASH_RUNS", "20"))
# Slow enough to be killed in every phase, and every task made durable by itself.
SLOW = ["--backend", "reference", "--checkpoint-interval", "0", "--threads", "1"]


class Resume(JobTest):
    @classmethod
    def setUpClass(cls):
        cls.case = cls("make_model")
        cls.case.setUp()
        cls.case.make_model()

    @classmethod
    def tearDownClass(cls):
        cls.case.doCleanups()

    def make_model(self):
        """A drafter of 20 MB, what an undisturbed job makes of it, and how long the slow one takes."""
        type(self).model = self.folder / "drafter"
        type(self).stats = self.folder / "calib"
        subprocess.run(["/usr/bin/python3", ROOT / "scripts" / "make_demo_drafter.py", self.folder, "--gigabytes", "0.02"],
                       check=True, capture_output=True)
        out = self.folder / "wanted"
        result = self.run_program("quantize", self.model, out, "--stats", self.stats)
        self.assertEqual(result.returncode, 0, result.stderr)
        type(self).wanted = hashes(out)
        begun = time.monotonic()
        self.end(self.start())
        type(self).seconds = time.monotonic() - begun

    def start(self, *args, ranks=2):
        command = ["mpirun", "-np", str(ranks), PROGRAM, "quantize", self.model, self.folder / "out", "--stats", self.stats,
                   *SLOW, *args]
        return subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, start_new_session=True)

    def finish(self, ranks=2):
        """Resumes to the end and returns what was said."""
        result = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, "--resume", ranks=ranks)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(hashes(self.folder / "out"), self.wanted)
        self.assert_nothing_left(self.folder, "out")
        return result.stderr

    def wait_for_journal(self, minimum=1, seconds=60):
        """Until the journal of the running job holds something."""
        work = self.folder / ".out.quantmill-work"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if sum(path.stat().st_size for path in work.glob("journal.*")) > 100 * minimum:
                    return
            except OSError:
                pass
            time.sleep(0.005)
        self.fail("the job never wrote to its journal")

    def ranks_of(self, job):
        return [pid for pid in processes_of(job.pid)[1:]
                if Path(f"/proc/{pid}/comm").exists() and Path(f"/proc/{pid}/comm").read_text().strip() == "quantmill"]

    def end(self, job, seconds=20):
        """The job's exit status; it must end, and leave no process."""
        try:
            job.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            kill(processes_of(job.pid))
            self.fail("the job did not end")
        return job.returncode

    def test_random_kills(self):
        chance = random.Random(7)
        resumed = {"search": 0, "write": 0, "from the start": 0, "finished": 0}
        for run in range(RUNS):
            for attempt in range(3):
                job = self.start("--resume", ranks=chance.choice((1, 2, 3)))
                time.sleep(self.seconds * chance.uniform(0.2, 0.7))
                pids = processes_of(job.pid)
                victims = {0: pids, 1: pids[:1]}.get(chance.randrange(3)) or [chance.choice(pids)]
                kill(victims)
                self.end(job)
                kill(pids)  # ranks whose mpirun was killed live on for a moment
            said = self.finish(ranks=chance.choice((1, 2, 3, 4)))
            match = re.search(r"resumed: (\d+) of (\d+) search tasks and (\d+) of (\d+) write tasks", said)
            if match:
                resumed["write" if int(match.group(3)) else "search"] += 1
            else:
                resumed["from the start" if "plan:" in said else "finished"] += 1
            shutil.rmtree(self.folder / "out")
        print(f"{RUNS} jobs, up to 3 kills each; the last run went on in: {resumed}")

    def test_signals_stop_in_good_order(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            with self.subTest(number.name):
                job = self.start()
                self.wait_for_journal()
                os.kill(self.ranks_of(job)[-1], number)  # one rank only: the others are told
                begun = time.monotonic()
                out, err = job.communicate(timeout=20)
                self.assertLess(time.monotonic() - begun, 10)
                self.assertEqual(job.returncode, 75, err)
                self.assertEqual(len(re.findall(f"^quantmill: .*stopped by {number.name}.*--resume", err, re.M)), 1, err)
                self.assertRegex(self.finish(ranks=3), "resumed: [1-9]")
                shutil.rmtree(self.folder / "out")

    def test_a_signal_reaches_other_nodes(self):
        job = self.start("--ranks-per-node", "1", ranks=3)
        self.wait_for_journal()
        os.kill(self.ranks_of(job)[1], signal.SIGTERM)
        self.assertEqual(self.end(job), 75)
        self.finish()

    def test_an_unfinished_job_is_not_thrown_away_by_mistake(self):
        job = self.start()
        self.wait_for_journal()
        kill(processes_of(job.pid))
        self.end(job)
        again = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats)
        self.assert_refused(again, 2, "unfinished", "--resume", "--restart")
        other = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, "--resume", "--keep", "fc")
        self.assert_refused(other, 2, "recipe was", "fc")
        os.utime(self.model / "model.safetensors")
        other = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, "--resume")
        self.assert_refused(other, 2, r"source model\.safetensors was")
        restarted = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, "--restart")
        self.assertEqual(restarted.returncode, 0, restarted.stderr)
        self.assertEqual(hashes(self.folder / "out"), self.wanted)
        self.assert_nothing_left(self.folder, "out")

    def test_a_finished_output_is_left_alone(self):
        self.finish()
        before = (self.folder / "out" / "model.safetensors").stat()
        result = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, "--resume", ranks=2)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("nothing to do", result.stdout)
        self.assertEqual((self.folder / "out" / "model.safetensors").stat(), before)
        other = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, "--resume",
                                 "--scale-rule", "ceil")
        self.assert_refused(other, 2, "exists and is of another job", "recipe")

    def test_a_second_job_for_the_same_output_is_refused(self):
        with open(self.folder / ".out.quantmill-lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as a job at work does
            second = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, ranks=2)
            self.assert_refused(second, 2, "another job is writing")
        self.finish()

    def test_a_torn_journal_is_not_fatal(self):
        job = self.start()
        self.wait_for_journal(minimum=4)
        kill(processes_of(job.pid))
        self.end(job)
        for journal in (self.folder / ".out.quantmill-work").glob("journal.*"):
            data = bytearray(journal.read_bytes())
            if len(data) > 40:
                data[len(data) // 2] ^= 0x55
                journal.write_bytes(data[:-5])
        self.finish()

    def test_a_lost_file_of_an_unfinished_job_is_noticed(self):
        job = self.start()
        work = self.folder / ".out.quantmill-work"
        deadline = time.monotonic() + 60
        while not (work / "output" / "quantmill_scales.h5").exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        size = sum(path.stat().st_size for path in work.glob("journal.*"))
        while sum(path.stat().st_size for path in work.glob("journal.*")) == size:  # until a write task is noted
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)
        kill(processes_of(job.pid))
        self.end(job)
        (work / "output" / "model.safetensors").unlink()
        result = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, "--resume")
        self.assert_refused(result, 4, r"model\.safetensors", "--restart")


class Changes(JobTest):
    def test_bad_input_leaves_nothing_to_resume(self):
        def spoil(tensors):
            values = tensors["fc.weight"][1].copy()
            values[90, 0] = 0x7FC0
            tensors["fc.weight"] = ("BF16", values)
        source = copy_tiny(self.folder / "source", spoil)
        result = self.run_program("quantize", source, self.folder / "out", "--stats", CALIB, ranks=2)
        self.assert_refused(result, 3, "fc.weight", "row 90")
        self.assert_nothing_left(self.folder, "source")

    def test_without_a_journal_there_is_none(self):
        out = self.quantize("--no-journal")
        self.assertEqual(hashes(out), hashes(self.quantize()))
        result = self.run_program("quantize", TINY, out, "--stats", CALIB, "--no-journal", "--resume")
        self.assert_refused(result, 2, "--resume", "--no-journal")


if __name__ == "__main__":
    unittest.main()
