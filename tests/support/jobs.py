"""Runs the built program on small checkpoints. For the tests in tests/job; standard library and numpy only."""
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import numpy as np

ROOT = Path(os.environ["QUANTMILL_SOURCE_DIR"])
GOLDEN = ROOT / "tests" / "golden"
TINY = GOLDEN / "dflash2-tiny"
CALIB = TINY / "calib" / "calib"
PROGRAM = os.environ["QUANTMILL"]
BACKEND = os.environ.get("QUANTMILL_TEST_BACKEND")
# One choice of scales for each fold group: block by block, the default of mxfp4, takes ten times longer.
SHORT_SEARCH = ["--scaling", "awq-grid", "--scale-rule", "even", "--objective", "w4a16"]

sys.path.insert(0, str(GOLDEN / "fold"))


class JobTest(unittest.TestCase):
    """A test with a folder of its own, removed afterwards."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="quantmill-job-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_program(self, *args, ranks=0, env=None, cwd=None):
        """The finished process; ranks 0 runs it without mpirun. With QUANTMILL_TEST_BACKEND jobs run on that backend."""
        command = [PROGRAM, *map(str, args)]
        if BACKEND and args and args[0] in ("quantize", "convert", "verify") and "--backend" not in args:
            command += ["--backend", BACKEND]
        if ranks:
            command = ["mpirun", "-np", str(ranks), *command]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd or self.folder,
                              stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})

    def quantize(self, *args, ranks=0, env=None, source=TINY, out=None, stats=CALIB):
        """Runs a job that must succeed and returns its output folder."""
        out = out or self.folder / f"out{len(list(self.folder.iterdir()))}"
        options = ["--stats", stats] if stats else []
        result = self.run_program("quantize", source, out, *options, *args, ranks=ranks, env=env)
        self.assertEqual(result.returncode, 0, result.stderr)
        return out

    def assert_refused(self, result, status, *words):
        """The exit status and one message that has all the words (regular expressions)."""
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        messages = [line for line in result.stderr.splitlines() if line.startswith("quantmill: ")]
        self.assertEqual(len(messages), 1, result.stderr)
        for word in words:
            self.assertRegex(messages[0], word)

    def assert_nothing_left(self, parent, *names):
        """`parent` holds these names and nothing else: no output, no work folder, no lock."""
        self.assertEqual(sorted(path.name for path in parent.iterdir()), sorted(names))


class PreparedTest(JobTest):
    """Tests that share what prepare() makes, once for all of them, in a folder of the class."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.shared = Path(tempfile.mkdtemp(prefix="quantmill-job-"))
        cls.addClassCleanup(shutil.rmtree, cls.shared, ignore_errors=True)
        case = cls("prepare")
        case.folder = cls.shared
        case.prepare()

    def prepare(self):
        """Fills self.folder, and sets attributes of the class."""
        raise NotImplementedError


def make_drafter(folder, gigabytes, *options):
    """A drafter of random weights in folder/drafter, and its statistics; returns that and the PREFIX of these."""
    subprocess.run([sys.executable, ROOT / "scripts" / "make_demo_drafter.py", folder, "--gigabytes", str(gigabytes), *options],
                   check=True, capture_output=True)
    return folder / "drafter", folder / "calib"


def start_job(ranks, *args, env=None):
    """A running `quantize`; ranks 0 runs it without mpirun."""
    command = [PROGRAM, "quantize", *map(str, args)]
    if ranks:
        command = ["mpirun", "-np", str(ranks), *command]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True, env={**os.environ, **(env or {})})


def ranks_of(job):
    """The processes of a running job's ranks, in order."""
    ranks = {}
    for pid in processes_of(job.pid)[1:]:
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == "quantmill":
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                ranks[int(environment.split(b"OMPI_COMM_WORLD_RANK=")[1].split(b"\0")[0])] = pid
        except (OSError, IndexError):
            continue  # it ended, or is not the program yet
    return [ranks[rank] for rank in sorted(ranks)]


def wait_for_journal(out, minimum=1, seconds=60):
    """Until the journal of the job that makes `out` holds some records."""
    work = out.parent / f".{out.name}.quantmill-work"
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if sum(path.stat().st_size for path in work.glob("journal.*")) > 100 * minimum:
                return
        except OSError:
            pass
        time.sleep(0.005)
    raise AssertionError("the job never wrote to its journal")


def processes_of(pid):
    """The process and everything below it."""
    found = [pid]
    for parent in found:
        try:
            found += [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        except OSError:
            pass  # it ended
    return found


def kill(pids):
    """SIGKILL to all of them, and a wait until they are gone."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for pid in pids:
        stat = Path(f"/proc/{pid}/stat")
        while True:
            try:
                if stat.read_text().rsplit(") ", 1)[1][0] == "Z":
                    break
            except OSError:
                break
            time.sleep(0.01)


RUN_RECORD = "quantmill_run.json"  # the one file of an output that differs from run to run


def hashes(folder):
    """File name -> sha256 of everything below a folder but the record of the run."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(Path(folder).rglob("*")) if path.is_file() and path.name != RUN_RECORD}


def read_safetensors(path):
    """Name -> (dtype, array of raw elements: uint8, uint16 for BF16/F16, float32 …)."""
    raw = Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    kinds = {"U8": "u1", "I8": "i1", "F8_E4M3": "u1", "F8_E8M0": "u1", "I32": "<i4", "BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8"}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = np.frombuffer(raw[8 + size + begin:8 + size + end], kinds[entry["dtype"]])
        tensors[name] = (entry["dtype"], data.reshape(entry["shape"]))
    return tensors


def read_folder(folder):
    """All tensors of a checkpoint folder, as read_safetensors gives them."""
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        tensors.update(read_safetensors(path))
    return tensors


def write_safetensors(path, tensors):
    """The reverse of read_safetensors."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, values) in tensors.items():
        raw = np.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def copy_tiny(folder, edit=None):
    """dflash2-tiny in a folder, its tensors changed by edit(tensors) if given."""
    folder.mkdir()
    shutil.copy(TINY / "config.json", folder)
    tensors = read_safetensors(TINY / "model.safetensors")
    if edit:
        edit(tensors)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder
