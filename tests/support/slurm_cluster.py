"""A real Slurm cluster of this one machine for the time of a test: munged, slurmctld and slurmd, all state in one folder.

Needs root and the packages slurm-wlm and munge. Two nodes are two slurmd on this machine.
"""

import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(os.environ["QUANTMILL_SOURCE_DIR"])
SCRIPTS = ROOT / "jobs/slurm"
QUANTMILL = os.environ["QUANTMILL"]
GPUS = ["/dev/null", "/dev/zero"]  # of each node


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class SlurmCluster:
    """with SlurmCluster(nodes) as cluster: subprocess.run(["sbatch", ...], env=cluster.environment)"""

    def __init__(self, nodes=1):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.nodes = [f"node{number}" for number in range(nodes)]
        self.daemons = []
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        for name in [name for name in self.environment if name.startswith("OMPI_")]:
            del self.environment[name]  # what a user under Slurm has not set either

    def __enter__(self):
        try:
            self.start_munge()
            self.write_configuration()
            self.start("slurmctld", ["slurmctld", "-D", "-i"])
            for node in self.nodes:
                # MPI names the memory that the ranks of a node share after the host and Slurm's number of the job: every node
                # needs a name of its own, among those of another test's cluster too.
                script = f"hostname {node}-{os.getpid()} && exec slurmd -D -N {node}"
                self.start(f"slurmd-{node}", ["unshare", "--uts", "sh", "-c", script])
            self.wait_until_idle(60)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self, name, command, user=None):
        with open(self.folder / f"{name}.log", "wb") as log:
            self.daemons.append(subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                                                 stderr=subprocess.STDOUT, cwd=self.folder, user=user))

    def lose_node(self, node, job):
        """What a power cut does: the node's daemon and all processes of this job die at once."""
        daemon = self.daemons[2 + self.nodes.index(node)]  # after munged and slurmctld
        daemon.kill()
        daemon.wait()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                of_job = (f"SLURM_JOB_ID={job}\0".encode() in (process / "environ").read_bytes()
                          or f"slurmstepd: [{job}.".encode() in (process / "cmdline").read_bytes())
                if of_job:
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                pass

    def start_munge(self):
        munge = self.folder / "munge"
        munge.mkdir()
        (munge / "key").write_bytes(os.urandom(128))
        os.chmod(munge / "key", 0o400)
        user = pwd.getpwnam("munge")
        os.chown(munge, user.pw_uid, user.pw_gid)
        os.chown(munge / "key", user.pw_uid, user.pw_gid)
        os.chmod(munge, 0o711)
        os.chmod(self.folder, 0o755)
        self.start("munged", ["munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key",
                              f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"],
                   user="munge")
        deadline = time.monotonic() + 20
        while not (munge / "socket").exists():
            if time.monotonic() > deadline or self.daemons[-1].poll() is not None:
                raise RuntimeError(f"munged did not start:\n{self.logs()}")
            time.sleep(0.1)

    def write_configuration(self):
        controller, *node_ports = free_ports(1 + len(self.nodes))
        found = subprocess.run(["slurmd", "-C"], capture_output=True, text=True, check=True, env=self.environment)
        hardware = dict(word.split("=", 1) for word in found.stdout.split() if "=" in word)
        host = socket.gethostname()
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={controller}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.folder}/munge/socket",
            "CryptoType=crypto/munge",
            "SlurmUser=root",
            "SlurmdUser=root",
            "MpiDefault=pmix",
            "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "GresTypes=gpu",
            "SelectTypeParameters=CR_Core_Memory",
            "SchedulerType=sched/backfill",
            "ReturnToService=2",
            "SwitchType=switch/none",
            "JobAcctGatherType=jobacct_gather/none",
            "JobCompType=jobcomp/filetxt",
            f"JobCompLoc={self.folder}/completed",
            f"TmpFS={self.folder}/tmp-%n",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool-%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
        ]
        for node, port in zip(self.nodes, node_ports):
            for purpose in ("spool", "tmp"):
                (self.folder / f"{purpose}-{node}").mkdir()
            lines.append(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={hardware['CPUs']} "
                         f"RealMemory={hardware['RealMemory']} Gres=gpu:{len(GPUS)} State=UNKNOWN")
        lines.append(f"PartitionName=all Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP")
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        # No GPUs, but what Slurm tells jobs of them is real.
        (self.folder / "gres.conf").write_text("".join(
            f"NodeName={node} Name=gpu File={device}\n" for node in self.nodes for device in GPUS))

    def wait_until_idle(self, seconds):
        deadline = time.monotonic() + seconds
        while True:
            shown = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True, check=False,
                                   env=self.environment).stdout.split()
            if shown == ["idle"] * len(self.nodes):
                return
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in self.daemons):
                raise RuntimeError(f"the nodes are {shown}, not idle:\n{self.logs()}")
            time.sleep(0.3)

    def logs(self):
        parts = []
        for log in sorted([*self.folder.glob("*.log"), *self.folder.glob("munge/log")]):
            tail = log.read_text(errors="replace").splitlines()[-15:]
            parts.append(f"== {log.name}\n" + "\n".join(tail))
        return "\n".join(parts)

    def stop(self):
        """Ends the jobs, then the daemons: a step whose controller is gone would try to reach it for minutes."""
        if all(daemon.poll() is None for daemon in self.daemons) and len(self.daemons) > 1:
            subprocess.run(["scancel", "--user=root"], capture_output=True, check=False, env=self.environment, timeout=30)
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline and (self.queue() or self.steps()):
                time.sleep(0.2)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for step in self.steps():
            os.kill(step, signal.SIGKILL)
        self.daemons = []
        self.temporary.cleanup()

    def queue(self):
        return subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=False, env=self.environment).stdout

    def steps(self):
        """Processes that run this cluster's steps: not our children, so known by the folder that they work in."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (process / "comm").read_text().strip() == "slurmstepd":
                    folder = os.readlink(process / "cwd")
                    if pathlib.Path(folder).is_relative_to(self.folder):
                        found.append(int(process.name))
            except OSError:
                continue  # it ended
        return found


class ClusterTest(unittest.TestCase):
    """Tests that share a cluster of two nodes, both this machine, and a folder."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        cls.prepare()
        cls.cluster = SlurmCluster(nodes=2)
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    @classmethod
    def prepare(cls):
        """What the tests need before there is a cluster."""

    def slurm(self, *command, check=True, seconds=60, program=QUANTMILL):
        """The finished command, run where the jobs run."""
        return subprocess.run([str(word) for word in command], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True,
                              env={**self.cluster.environment, "QUANTMILL": str(program)}, text=True, timeout=seconds,
                              check=check)

    def state(self, job):
        return re.search(r"JobState=(\w+)", self.slurm("scontrol", "show", "job", job).stdout).group(1)

    def wait_for(self, what, condition, seconds=90, log=None):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except OSError:
                pass
            time.sleep(0.05)
        said = log.read_text() if log and log.exists() else ""
        self.fail(f"no {what} in {seconds} s:\n{said}\n{self.cluster.logs()}")


def main():
    reason = unavailable()
    if reason:
        sys.exit(f"no Slurm cluster can be started: {reason}")
    unittest.main()


def unavailable():
    """Nothing, or why a cluster can't be started here."""
    if os.getuid() != 0:
        return "not root"
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "unshare") if not shutil.which(name)]
    return f"not installed: {', '.join(missing)}" if missing else None
