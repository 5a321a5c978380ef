"""Slurm for real on this machine: munge, a controller and one node, all below one directory and gone with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel")
INSTALL = "sudo apt-get install --no-install-recommends slurm-wlm munge"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}

_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.sock
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters={controls}
KillWait=5
MpiDefault=none
ReturnToService=2
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=500 State=UNKNOWN
PartitionName=low  Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=10 MaxTime=10 State=UP
PartitionName=high Nodes={host} PriorityTier=10 PreemptMode=OFF MaxTime=10 State=UP
"""


def missing() -> str:
    """Return why Slurm cannot run here, or nothing."""
    absent = [name for name in PROGRAMS if _program(name) is None]
    if absent:
        return f"no {absent[0]} on this machine: {INSTALL}"
    return "" if os.geteuid() == 0 else "slurmd wants to be root"


class Cluster:
    """A running cluster of one node with all its CPUs. Commands see it through ``environ``."""

    def __init__(self, root: Path, *, user_signal: bool = True) -> None:
        """Start the daemons. ``user_signal``: a job that is preempted gets the signal that it has asked for."""
        self.root = root
        self.environ = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []
        for name in ("state", "spool"):
            (root / name).mkdir(parents=True)
        host = socket.gethostname().split(".")[0]
        controls = "preempt_send_user_signal" if user_signal else "enable_configless"
        ctld, slurmd = _free_ports(2)
        (root / "slurm.conf").write_text(
            _CONF.format(host=host, root=root, ctld=ctld, slurmd=slurmd, cpus=os.cpu_count(), controls=controls)
        )
        key = root / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        munge = [
            f"--{name}={root}/munge.{ending}"
            for name, ending in (
                ("key-file", "key"),
                ("socket", "sock"),
                ("pid-file", "pid"),
                ("log-file", "log"),
                ("seed-file", "seed"),
            )
        ]
        try:
            self._start("munged", "--foreground", "--force", *munge)
            self._until((root / "munge.sock").exists, "munged listens")
            self._start("slurmctld", "-D")
            self._start("slurmd", "-D", "-N", host)
            self._until(lambda: self.run("sinfo", "-h", "-o", "%t").strip().startswith("idle"), "the node is idle")
        except BaseException:
            self.stop()
            raise

    def run(self, *command: str) -> str:
        """Run one of Slurm's commands and return its output, empty where it fails."""
        done = subprocess.run(
            list(command), env=self.environ, capture_output=True, text=True, check=False, timeout=30, cwd=self.root
        )
        return done.stdout

    def submit(self, *words: str, **environ: str) -> str:
        """Submit: options, the batch script, its arguments. Returns the job's id."""
        done = subprocess.run(
            ["sbatch", "--parsable", f"--ntasks={os.cpu_count()}", "--time=5", *words],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            cwd=self.root,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """Return what Slurm says of a job."""
        return dict(word.split("=", 1) for word in self.run("scontrol", "show", "job", job).split() if "=" in word)

    def until_state(self, job: str, *states: str, timeout_s: float = 60) -> str:
        """Wait for a job's state."""
        return str(self._until(lambda: (s := self.job(job).get("JobState", "")) in states and s, states, timeout_s))

    def preempt(self, job: str) -> None:
        """Let a job with more priority take the node, and come to its end; then do not wait for the requeue's delay."""
        before = int(self.job(job)["Restarts"])
        high = self.submit("--partition=high", "--job-name=high", "--output=/dev/null", "--wrap=true")
        self._until(lambda: int(self.job(job)["Restarts"]) > before, "the job is requeued", 60)
        self.until_state(high, "COMPLETED")
        self._until(lambda: self.job(job)["JobState"] == "PENDING", "the job waits")
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now")

    def stop(self) -> None:
        """End every job and every daemon."""
        if len(self._daemons) == 3:
            self.run("scancel", "--user=root", "--full", "--signal=KILL")
            self.run("scancel", "--user=root")
            with contextlib.suppress(AssertionError):
                self._until(lambda: not self.run("squeue", "-h"), "no job is left", 20)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self, name: str, *arguments: str) -> None:
        program = _program(name)
        assert program is not None
        with (self.root / f"{name}.out").open("wb") as output:
            self._daemons.append(
                subprocess.Popen(
                    [program, *arguments],
                    env=self.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self.root,
                )
            )

    def _until(self, ready: Callable[[], object], what: object, timeout_s: float = 30) -> object:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if value := ready():
                return value
            time.sleep(0.1)
        logs = "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in self.root.glob("*.log"))
        raise AssertionError(f"it did not come to that: {what}\n{logs}")


@contextlib.contextmanager
def cluster(root: Path, *, user_signal: bool = True) -> Iterator[Cluster]:
    """Run a cluster."""
    running = Cluster(root, user_signal=user_signal)
    try:
        yield running
    finally:
        running.stop()


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports
