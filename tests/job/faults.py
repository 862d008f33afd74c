"""A job that the operating system fails (full disk, broken disk, lost files, lost memory) ends with one message that says
what failed, leaves OUT as it was, and goes on with --resume to the same bytes once the cause is gone. tests/job/faults.md
shows what the user sees; FAULTS_TABLE=FILE writes the rows of it."""
import os
import re
import resource
import shutil
import signal
import subprocess
import threading
import time
import unittest
from pathlib import Path

from jobs import (CALIB, PATIENCE, PROGRAM, SHORT_SEARCH, SLOW, SLOW_AND_ALONE, PreparedTest, copy_tiny, hashes, kill, make_drafter,
                  processes_of, ranks_of, start_job, wait_for_journal)

FAULTS = os.environ["QUANTMILL_FAULTS"]
# Several files of output, and every task made durable by itself.
OPTIONS = ["--max-shard-size", "100K", "--checkpoint-interval", "0"]
NO_SPACE = "No space left on device; [0-9]+ bytes are free there"
QUOTA = "Disk quota exceeded"
RESUMABLE = "; finished work is kept: once this is put right, the same command with --resume goes on$"


def record(fault, result, left, afterwards, said=None):
    """Adds a row to the table, if one is wanted. said: what the user sees, if not the message that ends the job."""
    if "FAULTS_TABLE" in os.environ:
        said = said or " ".join(line for line in result.stderr.splitlines() if line.startswith("quantmill: "))
        message = re.sub(r"/\S*quantmill-job-[^/]*", "/data", said).replace("|", "\\|")
        message = re.sub(r"\.[0-9a-f]{16}\.tmp", ".….tmp", message)
        with open(os.environ["FAULTS_TABLE"], "a") as table:
            table.write(f"| {fault} | `{message or '(nothing)'}` | {result.returncode} | {left} | {afterwards} |\n")


class Faults(PreparedTest):
    """On dflash2-tiny with a file in a folder of its own, in three files of output."""

    def prepare(self):
        type(self).source = copy_tiny(self.folder / "source")
        (self.source / "assets").mkdir()
        (self.source / "assets" / "notes.txt").write_text("about this model\n" * 10)
        out = self.folder / "wanted"
        result = self.run_program("quantize", self.source, out, "--stats", CALIB, *OPTIONS)
        self.assertEqual(result.returncode, 0, result.stderr)
        type(self).wanted = hashes(out)

    def setUp(self):
        super().setUp()
        self.out = self.folder / "made"
        self.work = self.folder / ".made.quantmill-work"

    def job(self, *args, rules=None, ranks=0, **faults):
        """Runs the job of the class, with faults in it if any are given."""
        env = {"FAULT_" + name.upper(): str(value) for name, value in faults.items()}
        if rules:
            env["FAULT_RULES"] = rules
        if env:
            env["LD_PRELOAD"] = FAULTS
        return self.run_program("quantize", self.source, self.out, "--stats", CALIB, *OPTIONS, *args, ranks=ranks, env=env)

    def make_old_output(self):
        for path in (self.out, self.work):
            shutil.rmtree(path, ignore_errors=True)
        self.out.mkdir()
        (self.out / "old").write_text("what was there before")
        return hashes(self.out)

    def assert_resumes(self, *args, ranks=0):
        result = self.job("--resume", *args, ranks=ranks)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(hashes(self.out), self.wanted)
        self.assert_nothing_left(self.folder, "made")

    def check(self, fault, rules, *words, ranks=0, resumable=RESUMABLE, **faults):
        """The job with this fault, over an existing OUT, and again without it."""
        with self.subTest(fault, ranks=ranks):
            before = self.make_old_output()
            result = self.job("--overwrite", rules=rules, ranks=ranks, **faults)
            self.assert_refused(result, 4, *words, *([resumable] if resumable else []))
            self.assertEqual(hashes(self.out), before)
            names = {path.name for path in self.folder.iterdir()} - {"made"}
            self.assertEqual(names, {self.work.name} if resumable else set())
            self.assert_resumes("--overwrite", ranks=ranks)
            record(fault, result, "OUT as it was; the work folder" if resumable else "OUT as it was",
                   "`--resume`: the same bytes" if resumable else "run it again: the same bytes")

    def test_full_disk(self):
        def written(name):
            return rf"cannot write [0-9]+ bytes at offset [0-9]+ of \S*{name}\S*: {NO_SPACE}"
        self.check("disk full, weights reserved", "allocate model- ENOSPC 1+",
                   rf"cannot reserve [0-9]+ bytes for \S*model-00001\S*: {NO_SPACE}")
        self.check("disk full, weights (file system that can't reserve)", "write model- ENOSPC 9+", written("model-0000"))
        self.check("disk full, index", "write safetensors.index ENOSPC 1+", written("model.safetensors.index.json"))
        self.check("disk full, configuration", "write config.json ENOSPC 1+", written("config.json"))
        self.check("disk full, scales", "write quantmill_scales ENOSPC 1+", written("quantmill_scales.h5"))
        self.check("disk full, other files", "write output/assets ENOSPC 1+", written("assets/notes.txt"))
        self.check("disk full, manifest", "write quantmill_manifest ENOSPC 1+", written("quantmill_manifest.json"))
        self.check("disk full, journal begun", "write journal. ENOSPC 1+", written("journal.0.0"))
        self.check("disk full, journal", "write journal. ENOSPC 20+", written("journal.0.0"))
        self.check("disk full, before the job begins", "write fingerprint ENOSPC 1+", written("fingerprint.json"),
                   resumable="")

    def test_full_disk_on_one_of_two_ranks(self):
        self.check("disk full, weights, seen by one rank of two", "write model- ENOSPC 2+", NO_SPACE, ranks=2, rank=1)
        self.check("disk full, journal, seen by one rank of two", "write journal. ENOSPC 3+", r"journal\.0\.1", NO_SPACE,
                   ranks=2, rank=1)

    def test_quota(self):
        self.check("quota, weights reserved", "allocate model- EDQUOT 2+",
                   rf"cannot reserve [0-9]+ bytes for \S*model-00002\S*: {QUOTA}")
        self.check("quota, journal", "write journal. EDQUOT 9+", rf"cannot write [0-9]+ bytes .*journal\.0\.0: {QUOTA}")
        self.check("quota, manifest", "write quantmill_manifest EDQUOT 1+", rf"cannot write [0-9]+ bytes .*manifest.*{QUOTA}")

    def test_disk_of_so_many_bytes(self):
        """Wherever the disk is full, the job can go on; a disk with a little more room each time is enough in the end."""
        total = sum(path.stat().st_size for path in (self.shared / "wanted").rglob("*") if path.is_file())
        places = set()
        for room in (1000, 3000, total // 2, total - 20000, total - 2000):
            result = self.job("--resume", disk=f"{room} {self.work.name}")
            # What was noted earlier is not written again: how much that is depends on the order of two threads.
            if room > total // 2 and result.returncode == 0:
                break
            self.assert_refused(result, 4, NO_SPACE)
            places.add(re.search(r"(journal|model-|config|index|manifest|scales|assets|fingerprint|quantmill_run)", result.stderr).group())
            self.assertFalse(self.out.exists())
        self.assertGreaterEqual(len(places), 2)
        self.assert_resumes()

    def test_broken_disk_under_the_output(self):
        self.check("EIO when weights are synced", "sync model- EIO 5", r"cannot sync \S*model-0000\S*: Input/output error")
        self.check("EIO when the journal is synced", "sync journal. EIO 5", r"cannot sync \S*journal\.0\.0: Input/output")

    def test_nothing_is_noted_after_data_was_lost(self):
        # The kernel tells of lost writes once; the next sync succeeds and proves nothing.
        log = self.folder / "calls"
        result = self.job("--threads", "2", rules="sync model- EIO 5", log=log)
        self.assert_refused(result, 4, "cannot sync")
        calls = log.read_text().splitlines()
        lost = next(i for i, line in enumerate(calls) if re.search(r" sync \S*model-\S* 0 -1$", line))
        self.assertTrue([line for line in calls[:lost] if re.search(r" write \S*/journal\.", line)])
        self.assertEqual([line for line in calls[lost:] if re.search(r" write \S*/journal\.", line)], [])
        log.unlink()
        self.assert_resumes()

    def test_broken_disk_under_the_source(self):
        words = (r"tensor '\S+': cannot read [0-9]+ bytes at offset [0-9]+ of \S*source/model\.safetensors: Input/output error",)
        self.check("EIO when the source is read", "read source/model.safetensors EIO 9+", *words)
        self.check("EIO when the source is read, by one rank of two", "read source/model.safetensors EIO 5+", "rank 1: ",
                   *words, ranks=2, rank=1)
        self.check("EIO when the source is opened", "open source/model.safetensors EIO 1+",
                   r"cannot open \S*source/model\.safetensors: Input/output error", resumable="")

    def test_short_reads_and_writes_are_gone_on_with(self):
        for ranks in (0, 2):
            result = self.job("--overwrite", rules="read source/ short 1+;write .made. short 1+", ranks=ranks)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(hashes(self.out), self.wanted)
        record("reads and writes that transfer half of what was asked", result, "OUT, complete", "")

    def test_read_only_place(self):
        self.check("OUT's folder is read-only", "create,mkdir,rename,rename2 /.made EROFS 1+",
                   r"cannot create \S*made\S*: Read-only file system", resumable="")
        self.check("OUT's folder may not be written", "mkdir .made EACCES 1+", r"cannot make \S*made\S*: Permission denied",
                   resumable="")
        self.check("OUT's folder became read-only", "create,rename2 /.made EROFS 20+;rename2 /made EROFS 1+",
                   "Read-only file system")

    def test_file_systems_without_atomic_exchange(self):
        before = self.make_old_output()
        result = self.job("--overwrite", rules="rename2 /made EINVAL 1+;rename /made EIO 1")
        self.assert_refused(result, 4, "cannot rename the finished checkpoint to .*made: Input/output error", RESUMABLE)
        self.assertEqual(hashes(self.out), before)
        self.out.rename(self.work / "replaced")  # as a process leaves it that was killed between its two renames
        self.assert_refused(self.job(), 2, "exists")
        self.assertEqual(hashes(self.out), before)
        self.assert_refused(self.job("--overwrite"), 2, "unfinished", "--resume")
        self.assert_resumes("--overwrite")
        result = self.job("--overwrite", rules="rename2 /made EINVAL 1+")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(hashes(self.out), self.wanted)
        self.assert_nothing_left(self.folder, "made")

    def test_leftovers_of_a_killed_job_do_not_get_into_the_output(self):
        self.assert_refused(self.job(rules="write quantmill_manifest ENOSPC 1+"), 4, "manifest")
        (self.work / "output" / ".config.json.0123456789abcdef.tmp").write_text("{")
        self.assert_resumes()

    def test_clock_jumps(self):
        for ranks, seconds in ((0, 10**8), (2, -10**8)):
            result = self.job("--overwrite", clock=seconds, ranks=ranks)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(hashes(self.out), self.wanted)
        record("the clock jumps by three years and back", result, "OUT, complete", "")

    def test_order_of_syncs(self):
        """Before a record is written, all data it may stand on is synced; before OUT appears, all files and folders are."""
        for ranks in (0, 2):
            log = self.folder / "calls"
            result = self.job("--overwrite", "--threads", "1", log=log, ranks=ranks)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.check_order([line.split(" ") for line in log.read_text().splitlines()])
            log.unlink()

    def check_order(self, calls):
        work, out = str(self.work), str(self.out)
        unsynced = {}  # path -> processes whose writes to it, or names in it, are not synced
        records = synced_records = 0
        appeared = False
        for pid, call, path, detail, result in calls:
            self.assertFalse(result == "-1" and call == "sync")
            parent = os.path.dirname(path)
            if not path.startswith(work) and path not in (out, str(self.folder)):
                continue
            if call == "sync":
                unsynced.pop(path, None)  # of every process: a sync is of the file
            elif call == "write" and "/journal." in path:
                dirty = [name for name, pids in unsynced.items() if "/output/" in name and pid in pids]
                self.assertEqual(dirty, [], "written, not synced, but noted as done")
                records += int(detail) > 8
            if call == "write":
                unsynced.setdefault(path, set()).add(pid)
            elif call in ("mkdir", "create"):
                unsynced.setdefault(parent, set()).add(pid)
            elif call == "rename":
                if detail == out:
                    appeared = True
                    journals = {name for name in unsynced if "/journal." in name or name == str(self.folder)}
                    self.assertEqual(set(unsynced) - journals, set(), "not synced when OUT appears")
                    self.assertEqual({name for name in journals if "/journal." in name}, set())
                if path in unsynced:
                    unsynced[detail] = unsynced.pop(path)
                unsynced.setdefault(os.path.dirname(detail), set()).add(pid)
        self.assertTrue(appeared)
        self.assertGreater(records, 20)
        self.assertNotIn(str(self.folder), unsynced)


class Changes(PreparedTest):
    """What others do to the files of a running job, and to its processes: on a drafter that takes seconds."""

    def prepare(self):
        make_drafter(self.folder, 0.005, "--vocabulary", "4096")
        result = self.run_program("quantize", self.folder / "drafter", self.folder / "wanted", "--stats",
                                  self.folder / "calib", *SHORT_SEARCH)
        self.assertEqual(result.returncode, 0, result.stderr)
        type(self).wanted = hashes(self.folder / "wanted")

    def setUp(self):
        super().setUp()
        self.source = self.folder / "source"
        shutil.copytree(self.shared / "drafter", self.source)
        self.weights = self.source / "model.safetensors"
        self.place = self.folder / "place"
        self.place.mkdir()
        self.out = self.place / "out"

    def arguments(self, *args, slow=SLOW):
        return [self.source, self.out, "--stats", self.shared / "calib", *SHORT_SEARCH, *slow, *args]

    def start(self, *args, ranks=0):
        """A job that has just noted its first tasks."""
        job = start_job(ranks, *self.arguments(*args))
        self.addCleanup(lambda: kill(processes_of(job.pid)))
        wait_for_journal(self.out, minimum=2)
        return job

    def end(self, job, seconds=30):
        out, err = job.communicate(timeout=seconds * PATIENCE)
        return subprocess.CompletedProcess(job.args, job.returncode, out, err)

    def assert_resumes(self):
        result = self.run_program("quantize", *self.arguments("--resume"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(hashes(self.out), self.wanted)
        self.assert_nothing_left(self.place, "out")

    def test_source_changed(self):
        def edit():
            with open(self.weights, "r+b") as file:
                file.seek(-1000, os.SEEK_END)
                file.write(b"\x11")

        def replace():
            other = self.source / "other"
            shutil.copy(self.weights, other)
            other.rename(self.weights)

        def truncate():
            os.truncate(self.weights, 100_000)

        for fault, change, status, words in (
                ("source edited while the job runs", edit, 3, ["the source changed", r"model\.safetensors"]),
                ("source replaced while the job runs", replace, 3, ["the source changed", r"model\.safetensors"]),
                ("source truncated while the job runs", truncate, 4, [r"model\.safetensors ends at byte 100000"])):
            with self.subTest(fault):
                job = self.start("--restart", ranks=2)
                change()
                result = self.end(job)
                self.assert_refused(result, status, *words)
                self.assertFalse(self.out.exists())
                left = sorted(path.name for path in self.place.iterdir())
                self.assertEqual(left, [] if status == 3 else [".out.quantmill-work"])
                again = self.run_program("quantize", *self.arguments("--resume"))
                if status == 4:  # nothing is mixed from two sources
                    self.assert_refused(again, 3, r"model\.safetensors")
                shutil.copy(self.shared / "drafter" / "model.safetensors", self.weights)
                record(fault, result, "nothing" if status == 3 else "the work folder", "run it again"
                       if status == 3 else "with the file as it was, times included: `--resume`; else `--restart`")
                shutil.rmtree(self.out, ignore_errors=True)

    def test_source_replaced_as_it_is_opened(self):
        job = start_job(0, *self.arguments(), env={"LD_PRELOAD": FAULTS, "FAULT_RULES": "read source/model.safetensors slow 1"})
        self.addCleanup(lambda: kill(processes_of(job.pid)))
        deadline = time.monotonic() + 30 * PATIENCE
        while not self.has_open(job.pid, self.weights):
            self.assertLess(time.monotonic(), deadline)
        other = self.source / "other"
        shutil.copy(self.weights, other)
        other.rename(self.weights)
        result = self.end(job)
        self.assert_refused(result, 3, "the source changed", r"model\.safetensors")
        self.assertEqual(list(self.place.iterdir()), [])

    def test_ranks_that_see_different_sources(self):
        """As when a source is replaced while one node's ranks have opened it and another's have not."""
        other = self.folder / "other"
        shutil.copytree(self.source, other)  # the same bytes, changed at another time
        os.utime(other / "model.safetensors", (1, 1))
        parts = [["-np", "1", PROGRAM, "quantize", source, self.out, "--stats", self.shared / "calib", *SHORT_SEARCH, *SLOW]
                 for source in (self.source, other)]
        command = ["mpirun", *parts[0], ":", *parts[1]]
        result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120 * PATIENCE,
                                stdin=subprocess.DEVNULL)
        self.assert_refused(result, 3, "rank 1: this rank does not see the job that rank 0 sees: source model.safetensors was",
                            "changed at 1000000000 ns")
        self.assertEqual(list(self.place.iterdir()), [])

    def has_open(self, pid, path):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if os.readlink(link) == str(path):
                    return True
            except OSError:
                pass  # closed meanwhile
        return False

    def test_source_unlinked(self):
        job = self.start()
        aside = self.folder / "aside"
        self.weights.rename(aside)
        result = self.end(job)
        self.assert_refused(result, 4, r"source/model\.safetensors", "No such file or directory", RESUMABLE)
        self.assertFalse(self.out.exists())
        aside.rename(self.weights)
        self.assert_resumes()
        record("source removed while the job runs", result, "the work folder", "file put back, `--resume`: the same bytes")

    def test_place_vanished(self):
        job = self.start()
        aside = self.folder / "aside"
        self.place.rename(aside)
        result = self.end(job)
        self.assert_refused(result, 4, "place", "No such file or directory", RESUMABLE)
        self.assertFalse(self.place.exists())
        aside.rename(self.place)
        self.assert_resumes()
        record("OUT's folder vanishes while the job runs", result, "the work folder", "back again, `--resume`: the same bytes")

    def test_output_made_by_others(self):
        job = self.start(ranks=2)
        self.out.mkdir()
        (self.out / "thesis.tex").write_text("years of work")
        result = self.end(job)
        self.assert_refused(result, 4, "made by others while the job ran", "--overwrite", RESUMABLE)
        self.assertEqual((self.out / "thesis.tex").read_text(), "years of work")
        shutil.rmtree(self.out)
        self.assert_resumes()
        record("OUT made by others while the job runs", result, "OUT as it was; the work folder",
               "moved away, `--resume`: the same bytes")

    def test_rank_killed(self):
        job = self.start(ranks=2)
        pids = processes_of(job.pid)
        begun = time.monotonic()
        os.kill(ranks_of(job)[1], signal.SIGKILL)
        result = self.end(job)
        self.assertLess(time.monotonic() - begun, 15 * PATIENCE)
        self.assertNotEqual(result.returncode, 0)
        while [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
            self.assertLess(time.monotonic() - begun, 15 * PATIENCE, "processes of the job live on")
            time.sleep(0.05)
        self.assertFalse(self.out.exists())
        self.assert_resumes()
        result.stderr = "quantmill: (of mpirun) " + next((line for line in result.stderr.splitlines() if "signal" in line), "")
        record("kill -9 of one rank", result, "the work folder", "`--resume`: the same bytes")

    def test_memory_runs_out(self):
        job = self.start()
        used = int(re.search(r"VmSize:\s+([0-9]+) kB", Path(f"/proc/{job.pid}/status").read_text()).group(1)) << 10
        resource.prlimit(job.pid, resource.RLIMIT_AS, (used, used))
        result = self.end(job)
        self.assert_refused(result, 4, "out of memory; give the job more memory, fewer threads", RESUMABLE)
        self.assertFalse(self.out.exists())
        self.assert_resumes()
        record("out of memory", result, "the work folder", "`--resume`, with more memory: the same bytes")

    def test_stopped_rank_is_named(self):
        """Rank 0 tells of rank 1, on its own node and on another; rank 1 tells of rank 0."""
        for stopped, nodes in ((1, []), (1, ["--ranks-per-node", "1"]), (0, []), (0, ["--ranks-per-node", "1"])):
            with self.subTest(stopped=stopped, nodes=nodes):
                job = self.start("--restart", "--heartbeat", "0.5", *nodes, ranks=2)
                said, reader = collect(job.stderr)
                rank = ranks_of(job)[stopped]
                os.kill(rank, signal.SIGSTOP)
                named = rf"warning: (?:search|write): rank {stopped} on \S+ has given no sign of life .* for ([0-9.]+) s"
                self.wait_for_growing_gaps(said, named)
                self.assertIsNone(job.poll())
                os.kill(rank, signal.SIGCONT)
                self.assertEqual(job.wait(60 * PATIENCE), 0)
                reader.join()
                job.stdout.close()
                job.stderr.close()
                text = "".join(said)
                self.assertRegex(text, rf"rank {stopped} on \S+ goes on, after [0-9.]+ s")
                self.assertRegex(text, r"(search|write): [0-9.]+ of [0-9.]+ GB, [0-9]+ of [0-9]+ tasks\n")
                self.assertEqual(hashes(self.out), self.wanted)
                self.assert_nothing_left(self.place, "out")
                shutil.rmtree(self.out)
        record("a rank stopped for seconds, then continued", subprocess.CompletedProcess(job.args, 0, "", text),
               "OUT, complete", "", said=re.search(named, text).group())

    def wait_for_growing_gaps(self, said, pattern, seconds=60):
        """Until two lines in a row tell of times of which the later is about twice the earlier, or more."""
        end = time.monotonic() + seconds * PATIENCE
        gaps = []
        while not any(later > 1.8 * earlier for earlier, later in zip(gaps, gaps[1:])):
            self.assertLess(time.monotonic(), end, "".join(said))
            time.sleep(0.02)
            gaps = [float(gap) for gap in re.findall(pattern, "".join(said))]

    def test_a_rank_that_waits_for_its_disk_is_named(self):
        job = self.run_program("quantize", *self.arguments("--heartbeat", "1", slow=SLOW_AND_ALONE), ranks=2,
                               env={"LD_PRELOAD": FAULTS, "FAULT_RANK": "1", "FAULT_RULES": "read source/model.safetensors slow 9"})
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertRegex(job.stderr, r"rank 1 on \S+ has work but has finished nothing for [0-9.]+ s")
        self.assertEqual(hashes(self.out), self.wanted)
        record("a file system that takes seconds to answer", job, "OUT, complete", "",
               said=re.search(r"warning: .*has work but.*", job.stderr).group())


def collect(stream):
    """What comes out of a stream, as it comes, and the thread that reads it."""
    said = []
    reader = threading.Thread(target=lambda: said.extend(iter(stream.readline, "")), daemon=True)
    reader.start()
    return said, reader


if __name__ == "__main__":
    unittest.main()
