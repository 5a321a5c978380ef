"""The first process of a sandbox machine: what the kernel and init are on a real one. Standard library only.

``python -I guest.py DIRECTORY GRACE_SECONDS RERUN COMMAND...`` runs the command (the user data) and then idles, as a
machine does whose boot script has ended. It adopts every orphan, so nothing of the machine can slip out of its tree.
Without a command it is the second boot of a machine: it runs the scripts in ``per-boot``.

- standard input: the line ``kill`` or its end (the sandbox is gone) pulls the plug: SIGKILL for everything.
- ``DIRECTORY/power`` (a FIFO): ``halt SECONDS``, ``reboot SECONDS`` or ``cancel``, written by the ``shutdown`` shim.
- standard output: ``off`` when the guest has shut itself down, ``reboot`` when it starts again.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

MACHINE_LABEL = "gpu-failover-machine"
"""On every container of a machine; its value is the machine's directory."""
_ENGINE_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36


def descendants(root: int) -> set[int]:
    """Return the process ids of everything below ``root``, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # ended while we looked
            continue
        state, parent = stat[stat.rfind(")") + 2 :].split()[:2]
        if state != "Z":
            children.setdefault(int(parent), []).append(int(entry.name))
    found: set[int] = set()
    queue = [root]
    while queue:
        below = [pid for pid in children.get(queue.pop(), []) if pid not in found]
        found.update(below)
        queue.extend(below)
    return found


def end_containers(docker: str, label: str, environ: Mapping[str, str] | None = None) -> None:
    """Kill and remove the containers with a label, as a power cut does. An engine that is gone has none."""
    end = time.monotonic() + _ENGINE_S
    while (left := end - time.monotonic()) > 0:
        try:
            asked = [docker, "ps", "--all", "--quiet", "--filter", f"label={label}"]
            found = _engine(asked, environ, left).split()
            if not found:
                return
            _engine([docker, "rm", "--force", "--volumes", *found], environ, left)
        except (OSError, subprocess.TimeoutExpired):
            return


def _engine(argv: list[str], environ: Mapping[str, str] | None, timeout_s: float) -> str:
    return subprocess.run(
        argv,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=timeout_s,
        check=False,
        start_new_session=True,
    ).stdout


def _signal_all(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _reap() -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


class Guest:
    """One boot after the other until the plug is pulled or the guest powers off."""

    def __init__(self, directory: Path, grace_s: float, command: list[str], *, rerun: bool) -> None:
        """Open the power button and the channel to the sandbox. ``grace_s``: from SIGTERM to SIGKILL, in seconds."""
        self._directory = directory
        self._grace_s = grace_s
        self._command = command
        self._rerun = rerun
        self._due: tuple[str, float] | None = None
        power = directory / "power"
        power.unlink(missing_ok=True)
        os.mkfifo(power, 0o600)
        self._power = os.open(power, os.O_RDWR | os.O_NONBLOCK)  # read and write: it never reports an end
        self._wake, wake_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def boot(self, command: list[str]) -> None:
        """Run a boot command in a session of its own, its words in ``console.log``."""
        with (self._directory / "console.log").open("ab") as console:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._directory / "root",
            )

    def pull_the_plug(self) -> None:
        """Kill everything at once, until nothing is left."""
        while pids := descendants(os.getpid()):
            _signal_all(pids, signal.SIGKILL)
            _reap()
            time.sleep(0.005)
        docker = self._directory / "bin" / "docker"
        if docker.exists():
            end_containers(str(docker), f"{MACHINE_LABEL}={self._directory}")

    def shut_down(self) -> None:
        """End everything as init does: SIGTERM, a time of grace, SIGKILL."""
        asked: set[int] = set()
        end = time.monotonic() + self._grace_s
        while (pids := descendants(os.getpid())) and time.monotonic() < end:
            _signal_all(pids - asked, signal.SIGTERM)  # a process may have been born since the last look
            asked |= pids
            select.select([self._wake], [], [], 0.02)
            self._drain(self._wake)
            _reap()
        self.pull_the_plug()

    def run(self) -> int:
        """Serve until the machine is off; return the exit code of this process."""
        self._boot_again() if not self._command else self.boot(self._command)
        while True:
            timeout = None if self._due is None else max(0.0, self._due[1] - time.monotonic())
            ready, _, _ = select.select([sys.stdin, self._power, self._wake], [], [], timeout)
            if self._wake in ready:
                self._drain(self._wake)
                _reap()
            if sys.stdin in ready:  # a line or the end: both pull the plug
                self.pull_the_plug()
                return 0
            if self._power in ready:
                self._press(os.read(self._power, 4096).decode("utf-8", "replace"))
            if self._due is not None and time.monotonic() >= self._due[1]:
                action, self._due = self._due[0], None
                self.shut_down()
                os.write(1, b"off\n" if action == "halt" else b"reboot\n")
                if action == "halt":
                    return 0
                self._boot_again()

    def _boot_again(self) -> None:
        """Run what a second boot runs: not the user data (cloud-init runs them once), but the per-boot scripts."""
        if self._rerun and self._command:
            self.boot(self._command)
            return
        for script in sorted((self._directory / "per-boot").iterdir()):
            self.boot(["/bin/bash", str(script)])

    def _press(self, text: str) -> None:
        for line in text.splitlines():
            words = line.split()
            if words == ["cancel"]:
                self._due = None
            elif len(words) == 2 and words[0] in {"halt", "reboot"}:
                self._due = (words[0], time.monotonic() + float(words[1]))

    @staticmethod
    def _drain(descriptor: int) -> None:
        try:
            while os.read(descriptor, 512):
                pass
        except BlockingIOError:
            return


def main(argv: list[str]) -> int:
    """Start the machine described by the command line."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the operator's terminal, not to the machine
    directory, grace, rerun, *command = argv
    return Guest(Path(directory), float(grace), command, rerun=rerun == "1").run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
