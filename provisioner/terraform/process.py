"""Run a program to its end, whatever it does: no input, a deadline, no process left behind.

Output goes to files, not pipes. So neither a flood on stderr nor a grandchild that keeps stdout open can block us, and
a run whose controller was killed finishes its work instead of dying of a closed pipe in the middle of an apply.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

_POLL_S: Final = 0.05
_TAIL_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Finished:
    """How a run ended. ``returncode`` is negative when a signal ended it."""

    returncode: int
    timed_out: bool
    stdout: Path
    stderr: Path

    def stdout_text(self) -> str:
        """Return all of stdout."""
        return self.stdout.read_text(encoding="utf-8", errors="replace")

    def stderr_tail(self) -> str:
        """Return the last 64 KiB of stderr."""
        with self.stderr.open("rb") as file:
            file.seek(max(0, self.stderr.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")


class _Lines:
    """Hand over the complete lines that a file has gained."""

    def __init__(self, file: BinaryIO, on_line: Callable[[str], None]) -> None:
        self._file = file
        self._on_line = on_line
        self._rest = b""

    def read(self) -> None:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            self._on_line(line.decode("utf-8", errors="replace"))


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    deadline_s: float,
    grace_s: float = 20.0,
    on_line: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Finished:
    """Run ``argv`` in a session of its own; its output goes to ``log`` with ``.out`` and ``.err`` added (0600).

    ``on_line`` gets each line of stdout as it comes. After ``deadline_s`` seconds the program gets SIGINT, ``grace_s``
    seconds later its whole process group SIGKILL. The same happens when ``on_line`` raises or Ctrl-C comes. Raises
    OSError when the program cannot be started.
    """
    stdout, stderr = log.with_suffix(".out"), log.with_suffix(".err")
    with _fresh(stdout) as out, _fresh(stderr) as err, stdout.open("rb") as reader:
        process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            umask=0o077,
        )
        lines = _Lines(reader, on_line or (lambda _line: None))
        owner = log.with_suffix(f".{process.pid}.owner")
        owner.touch(mode=0o600)
        owner.write_text(json.dumps([[process.pid, _born(process.pid)], [os.getpid(), _born(os.getpid())]]))
        try:
            timed_out = _follow(process, lines, clock, deadline_s)
        finally:
            _end(process, grace_s)
            owner.unlink(missing_ok=True)
        lines.read()
    return Finished(process.returncode, timed_out, stdout, stderr)


def end_orphans(logs: Path, grace_s: float = 20.0) -> bool:
    """End runs that outlived the process that started them; say whether there was one. ``logs``: where their logs are.

    A run that was left alone finishes its work, but nobody watches its deadline any more. Knows of none where there is
    no /proc.
    """
    ended = [_end_orphan(note, grace_s) for note in logs.glob("*.owner")]
    return any(ended)


def _end_orphan(note: Path, grace_s: float) -> bool:
    try:
        (pid, born), (parent, parent_born) = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False
    if _born(parent) == parent_born:
        return False
    note.unlink(missing_ok=True)
    if not born or _born(pid) != born:
        return False
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGINT)
        end = time.monotonic() + grace_s
        while _born(pid) == born and time.monotonic() < end:
            time.sleep(_POLL_S)
        os.killpg(pid, signal.SIGKILL)
    return True


def _born(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks; empty when it is gone or only a zombie."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else fields[18]


def _follow(process: subprocess.Popen[bytes], lines: _Lines, clock: Callable[[], float], deadline_s: float) -> bool:
    """Pass lines on until the process ends (False) or the deadline passes (True)."""
    end = clock() + deadline_s
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
            return False
        lines.read()
        if clock() >= end:
            return True


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Interrupt the process if it runs, then kill what is left of its group."""
    if process.poll() is None:
        # Only the leader: Terraform stops its providers itself once their work is done.
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _fresh(path: Path) -> BinaryIO:
    """Open a new file. The old one is unlinked, not cut: a run that outlived its controller may still write to it."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
