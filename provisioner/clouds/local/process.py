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
_EXEC_LOOKS = 10
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "USER", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_")
# The process notes itself before it does anything else: a controller that is killed now finds it again. It belongs to
# no controller, so none has to collect it.
_BEGIN = "/bin/bash -c 'echo $$ > pid.new && mv pid.new pid && exec /bin/bash user-data' &"
_HARMLESS = "#!/bin/sh\n# A job must never switch this machine off.\nexit 0\n"


def _environment_of(pid: int) -> list[bytes]:
    """Return a process's environment. It reads as empty in the middle of an exec, so an empty one is read again."""
    for _ in range(_EXEC_LOOKS):
        content = Path(f"/proc/{pid}/environ").read_bytes()
        if content:
            return content.split(b"\0")
        time.sleep(_LOOK_S)
    return []  # a process that has ended and was not collected yet


class NodeProcess:
    """The processes of one token."""

    def __init__(self, directory: Path) -> None:
        """Name the folder; nothing is started."""
        self.directory = directory
        self._mark = f"{MARKER}={directory}".encode()

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
        try:
            pid = int((self.directory / "pid").read_text("ascii"))
        except (OSError, ValueError):
            return self.alive()  # it is just beginning
        try:
            if not Path("/proc/self/environ").exists():
                os.kill(pid, 0)
                return True
            return self._mark in _environment_of(pid)
        except (OSError, ProcessLookupError):
            return False

    def alive(self) -> bool:
        """Say whether a process of the node lives."""
        if not (self.directory / "alive").exists():
            return False
        with self._lock() as lock:
            return lock is None

    def end(self, sleep: Callable[[float], None] = time.sleep, grace_s: float = GRACE_S) -> None:
        """End every process; return when none is left. Raises CloudError if one cannot be ended."""
        for number, for_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_S)):
            until = time.monotonic() + for_s
            self._signal(number)
            while self.alive() and time.monotonic() < until:
                sleep(_LOOK_S)
                if number is signal.SIGKILL:
                    self._signal(number)  # one may have been born since
        if self.alive():
            message = f"{self.directory.name}: a process of this node cannot be ended"
            raise CloudError(message, hint=f"look for processes with {MARKER}={self.directory}")

    def remove(self) -> None:
        """Remove the folder of a node that has ended."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pids(self) -> set[int]:
        """Find the node's processes: by their environment where there is /proc, else the first one's group."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # ended, or another user's
                if self._mark in path.read_bytes().split(b"\0"):
                    found.add(int(path.parent.name))
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
