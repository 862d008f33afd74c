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

from jobs import (CALIB, PATIENCE, SHORT_SEARCH, SLOW, TINY, JobTest, PreparedTest, copy_tiny, hashes, kill, make_drafter, processes_of,
                  ranks_of, start_job, wait_for_journal)

# Random kills; CRASH_RUNS=200 is the long form, CRASH_SEED=8 kills elsewhere.
RUNS = int(os.environ.get("CRASH_RUNS", "20"))
SEED = int(os.environ.get("CRASH_SEED", "7"))


class Resume(PreparedTest):
    def prepare(self):
        """A drafter of 20 MB, what an undisturbed job makes of it, and how long the slow one takes."""
        type(self).model, type(self).stats = make_drafter(self.folder, 0.02)
        out = self.folder / "wanted"
        result = self.run_program("quantize", self.model, out, "--stats", self.stats, *SHORT_SEARCH)
        self.assertEqual(result.returncode, 0, result.stderr)
        type(self).wanted = hashes(out)
        begun = time.monotonic()
        self.end(self.start())
        type(self).seconds = time.monotonic() - begun

    def start(self, *args, ranks=2):
        return start_job(ranks, self.model, self.folder / "out", "--stats", self.stats, *SHORT_SEARCH, *SLOW, *args)

    def finish(self, ranks=2):
        """Resumes to the end and returns what was said."""
        result = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, *SHORT_SEARCH, "--resume", ranks=ranks)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(hashes(self.folder / "out"), self.wanted)
        self.assert_nothing_left(self.folder, "out")
        return result.stdout + result.stderr

    def end(self, job, seconds=120):
        """What the job said; it must end."""
        try:
            return "".join(job.communicate(timeout=seconds * PATIENCE))
        except subprocess.TimeoutExpired:
            kill(processes_of(job.pid))
            self.fail("the job did not end")

    def test_a_search_block_by_block(self):
        wanted = self.folder / "wanted"
        self.assertEqual(self.run_program("quantize", self.model, wanted, "--stats", self.stats, ranks=2).returncode, 0)
        job = start_job(2, self.model, self.folder / "out", "--stats", self.stats, *SLOW)
        wait_for_journal(self.folder / "out", minimum=2)
        kill(processes_of(job.pid))
        self.end(job)
        result = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, "--resume")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"resumed: [1-9]\d* of \d+ search tasks")
        self.assertEqual(hashes(self.folder / "out"), hashes(wanted))

    def test_random_kills(self):
        chance = random.Random(SEED)
        resumed = {"search": 0, "write": 0, "nothing noted yet": 0, "finished": 0}
        kills = 0
        for run in range(RUNS):
            for attempt in range(3):
                job = self.start("--resume", ranks=chance.choice((1, 2, 3)))
                time.sleep(self.seconds * chance.uniform(0.15, 0.6))
                kills += job.poll() is None
                pids = processes_of(job.pid)
                victims = {0: pids, 1: pids[:1]}.get(chance.randrange(3)) or [chance.choice(pids)]
                kill(victims)
                said = self.end(job)
                kill(pids)  # ranks whose mpirun was killed live on for a moment
                if attempt:
                    self.count(resumed, said)
            self.count(resumed, self.finish(ranks=chance.choice((1, 2, 3, 4))))
            shutil.rmtree(self.folder / "out")
        print(f"{RUNS} jobs, {kills} kills of running ones; what was resumed had got to: {resumed}")

    def count(self, resumed, said):
        """From which phase a resumed run went on; one that was killed before it could say so does not count."""
        match = re.search(r"resumed: (\d+) of (\d+) search tasks and (\d+) of (\d+) write tasks", said)
        if match:
            resumed["write" if int(match.group(1)) == int(match.group(2)) else "search"] += 1
        elif "plan:" in said:
            resumed["nothing noted yet"] += 1
        elif "nothing to do" in said:
            resumed["finished"] += 1

    def test_signals_stop_in_good_order(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            with self.subTest(number.name):
                job = self.start()
                wait_for_journal(self.folder / "out")
                os.kill(ranks_of(job)[-1], number)  # one rank only: the others are told
                begun = time.monotonic()
                out, err = job.communicate(timeout=20 * PATIENCE)
                self.assertLess(time.monotonic() - begun, 10 * PATIENCE)
                self.assertEqual(job.returncode, 75, err)
                self.assertEqual(len(re.findall(f"^quantmill: .*stopped by {number.name}.*--resume", err, re.M)), 1, err)
                self.assertRegex(self.finish(ranks=3), "resumed: [1-9]")
                shutil.rmtree(self.folder / "out")

    def test_a_signal_reaches_other_nodes(self):
        job = self.start("--ranks-per-node", "1", ranks=3)
        wait_for_journal(self.folder / "out")
        os.kill(ranks_of(job)[1], signal.SIGTERM)
        self.end(job)
        self.assertEqual(job.returncode, 75)
        self.finish()

    def test_a_second_signal_stops_at_once(self):
        for target in ("rank", "mpirun"):
            with self.subTest(target):
                job = self.start()
                wait_for_journal(self.folder / "out")
                pids = processes_of(job.pid)
                first, second = ranks_of(job)
                os.kill(first, signal.SIGSTOP)  # so that the job can't stop in good order
                victim = second if target == "rank" else job.pid
                os.kill(victim, signal.SIGTERM)
                if target == "rank":
                    time.sleep(1)
                    self.assertIsNone(job.poll())
                os.kill(victim, signal.SIGTERM)
                self.end(job, seconds=15)
                self.assertNotEqual(job.returncode, 0)
                if target == "rank":
                    self.assertEqual(job.returncode, 75)
                self.wait_until_gone(pids)
                if target == "rank":
                    self.assertFalse((self.folder / "out").exists())
                    self.assertRegex(self.finish(ranks=3), "resumed: [1-9]")
                else:  # mpirun is gone at once; its ranks go on until they notice
                    self.finish(ranks=3)
                shutil.rmtree(self.folder / "out")

    def wait_until_gone(self, pids, seconds=15):
        end = time.monotonic() + seconds * PATIENCE
        while [pid for pid in pids if os.path.exists(f"/proc/{pid}")]:
            self.assertLess(time.monotonic(), end, "processes of the job live on")
            time.sleep(0.05)

    def test_an_unfinished_job_is_not_thrown_away_by_mistake(self):
        job = self.start()
        wait_for_journal(self.folder / "out")
        kill(processes_of(job.pid))
        self.end(job)
        again = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, *SHORT_SEARCH)
        self.assert_refused(again, 2, "unfinished", "--resume", "--restart")
        other = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, *SHORT_SEARCH, "--resume", "--keep", "fc")
        self.assert_refused(other, 2, "recipe was", "fc")
        os.utime(self.model / "model.safetensors")
        other = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, *SHORT_SEARCH, "--resume")
        self.assert_refused(other, 2, r"source model\.safetensors was")
        restarted = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, *SHORT_SEARCH, "--restart")
        self.assertEqual(restarted.returncode, 0, restarted.stderr)
        self.assertEqual(hashes(self.folder / "out"), self.wanted)
        self.assert_nothing_left(self.folder, "out")

    def test_a_finished_output_is_left_alone(self):
        self.finish()
        before = (self.folder / "out" / "model.safetensors").stat()
        result = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, *SHORT_SEARCH, "--resume", ranks=2)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("nothing to do", result.stdout)
        self.assertEqual((self.folder / "out" / "model.safetensors").stat(), before)
        other = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, *SHORT_SEARCH, "--resume",
                                 "--alphas", "0,1")
        self.assert_refused(other, 2, "exists and is of another job", "recipe")

    def test_a_second_job_for_the_same_output_is_refused(self):
        with open(self.folder / ".out.quantmill-lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as a job at work does
            second = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, *SHORT_SEARCH, ranks=2)
            self.assert_refused(second, 2, "another job is writing")
        self.finish()

    def test_a_torn_journal_is_not_fatal(self):
        job = self.start()
        wait_for_journal(self.folder / "out", minimum=4)
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
        deadline = time.monotonic() + 60 * PATIENCE
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
        result = self.run_program("quantize", self.model, self.folder / "out", "--stats", self.stats, *SHORT_SEARCH, "--resume")
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
