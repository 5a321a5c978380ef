"""A node as a process tree of this machine that outlives the controller and is found again by its folder.

The tree holds a lock on ``alive`` in the folder: every process inherits it, and the kernel lets go when the last one
has ended, however it ended. So a restarted controller, or a second claim with the same token, is never in doubt.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from provisioner.errors import CloudError

MARKER = "FAILOVER_LOCAL_NODE"
"""Environment variable that names the node's folder in every process of it."""
GRACE_S = 15.0
"""From SIGTERM to SIGKILL: time for a last checkpoint."""
_KILL_S = 10.0
_LOOK_S = 0.05
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "USER", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_")
# The process notes itself before it does anything else: a controller that is killed now finds it again. It belongs to
# no controller, so none has to collect it.
_BEGIN = "/bin/bash -c 'echo $$ > pid.new && mv pid.new pid && exec /bin/bash user-data' &"
_HARMLESS = "#!/bin/sh\n# A job must never switch this machine off.\nexit 0\n"


def marks(name: str, value: str) -> bytes:
    """Return what is looked for in an environment as ``read_marks`` returns it."""
    return f"\0{name}\0{value}\0".encode()


def read_marks(pid: int) -> bytes:
    """Return a process's environment with NUL between names and values; nothing in the middle of an exec.

    bash puts a NUL in the place of each ``=`` for a moment, where it stands, while it begins.
    """
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
    return b"\0" + content.replace(b"=", b"\0") + b"\0" if content else b""


def _has_ended(pid: int) -> bool:
    """Say whether there is no such process, or one that only waits to be collected."""
    try:
        if not Path("/proc/self").exists():
            os.kill(pid, 0)
            return False
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in {"Z", "X"}


class NodeProcess:
    """The processes of one token."""

    def __init__(self, directory: Path) -> None:
        """Name the folder; nothing is started."""
        self.directory = directory
        self._mark = marks(MARKER, str(directory))

    def start(self, user_data: str, environ: Mapping[str, str]) -> None:
        """Run the user data with bash, once in the life of the folder. Raises OSError."""
        for name in ("home", "tmp", "bin", "failover"):
            (self.directory / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock() as lock:
            if lock is None or (self.directory / "pid").exists():
                return  # it runs, or ran
            (self.directory / "user-data").write_text(user_data, encoding="utf-8")
            (self.directory / "user-data").chmod(0o600)
            for verb in ("shutdown", "poweroff", "halt", "reboot"):
                shim = self.directory / "bin" / verb
                shim.write_text(_HARMLESS, encoding="ascii")
                shim.chmod(0o700)
            with (self.directory / "log").open("ab") as log:
                subprocess.run(
                    ["/bin/sh", "-c", _BEGIN],
                    cwd=self.directory,
                    env=self._environment(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(lock,),
                    check=True,
                )

    def running(self) -> bool:
        """Say whether the node's first process lives: it is the node, the others only serve it."""
        begins = not (self.directory / "pid").exists()
        pid = self._first()
        if pid is None:
            return begins and self.alive()
        found = read_marks(pid)
        return self._mark in found if found else self.alive()  # in the middle of an exec the lock tells

    def alive(self) -> bool:
        """Say whether a process of the node lives."""
        if not (self.directory / "alive").exists():
            return False
        with self._lock() as lock:
            return lock is None

    def end(self, sleep: Callable[[float], None] = time.sleep, grace_s: float = GRACE_S) -> None:
        """End every process; return when none is left. Raises CloudError if one cannot be ended."""
        for number, for_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_S)):
            until, told = time.monotonic() + for_s, set[int]()
            while self.alive() and time.monotonic() < until:
                # SIGTERM goes to all of one moment, in which the node itself was not in the middle of an exec: what it
                # starts then, to save, is left alone.
                if number is signal.SIGKILL or not told or self._first() not in {*told, None}:
                    for pid in self._pids() - told:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, number)
                        told.add(pid)
                sleep(_LOOK_S)
        if self.alive():
            message = f"{self.directory.name}: a process of this node cannot be ended"
            raise CloudError(message, hint=f"look for processes with {MARKER}={self.directory}")

    def remove(self) -> None:
        """Remove the folder of a node that has ended."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _first(self) -> int | None:
        """Return the node's first process; None when there is none yet, or none any more."""
        try:
            pid = int((self.directory / "pid").read_text("ascii"))
        except (OSError, ValueError):
            return None
        return None if _has_ended(pid) else pid

    def _pids(self) -> set[int]:
        """Find the node's processes: by their environment where there is /proc, else the first one's group."""
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        found = {pid for pid in pids if self._mark in read_marks(pid)}
        if not found and not Path("/proc/self/environ").exists():
            with contextlib.suppress(OSError, ValueError, ProcessLookupError):
                os.killpg(int((self.directory / "pid").read_text("ascii")), signal.SIGKILL)
        return found

    def _environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return what a fresh machine would have: no credentials of the operator, no setting of the controller."""
        kept = {name: value for name, value in environ.items() if name.startswith(_KEPT)}
        path = f"{self.directory / 'bin'}:{Path(sys.executable).parent}:{environ.get('PATH', '/usr/bin:/bin')}"
        return {
            **kept,
            "PATH": path,
            "HOME": str(self.directory / "home"),
            "TMPDIR": str(self.directory / "tmp"),
            "FAILOVER_HOME": str(self.directory / "failover"),
            "FAILOVER_NO_SHUTDOWN": "1",
            MARKER: str(self.directory),
        }

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int | None]:
        """Hold the folder's lock; None while the node holds it."""
        descriptor = os.open(self.directory / "alive", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield descriptor  # a child that inherited it holds it on when we close ours
        finally:
            os.close(descriptor)
