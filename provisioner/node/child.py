"""The training command as a child: its own process group, its output through a pipe, and no orphan left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from provisioner.errors import JobFailed
from provisioner.node.logs import split


class Child:
    """One run of the command. It shares the node's session, so that a machine can end both, but not its group."""

    def __init__(self, process: subprocess.Popen[bytes], record: Path, reader: threading.Thread) -> None:
        """Use :func:`start`."""
        self._process = process
        self._record = record
        self._reader = reader

    @property
    def pid(self) -> int:
        """Return the process id, which is the id of its group too."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def ask(self, number: signal.Signals) -> None:
        """Send a signal to the whole group: a shell between us and the training would not pass it on."""
        self._signal(number)

    def strike(self) -> None:
        """Send SIGKILL to the whole group, without a look back."""
        self._signal(signal.SIGKILL)

    def kill(self) -> None:
        """Send SIGKILL to the whole group and wait for the command's end."""
        self.strike()
        self._process.wait()

    def clean_up(self, timeout_s: float = 2.0) -> None:
        """After the end: kill what the command left in its group, read the rest of its output, forget it."""
        self._signal(signal.SIGKILL)
        self._reader.join(timeout_s)  # a daemon that left the group may hold the pipe for ever
        with contextlib.suppress(OSError):
            self._record.unlink()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def start(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    record: Path,
    take: Callable[[bytes], None],
    on_end: Callable[[], None],
) -> Child:
    """Start the command. ``record`` remembers it, so that a node that was killed finds it again.

    ``take`` gets its output line by line, ``on_end`` is called in another thread when it has ended. Raises JobFailed
    when it cannot be started.
    """
    try:
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    except OSError as error:
        raise JobFailed(f"the command {command[0]!r} cannot be started: {error.strerror}") from error
    assert process.stdout is not None  # noqa: S101 - we asked for a pipe
    pipe = process.stdout
    with contextlib.suppress(OSError):  # disk full: an orphan would then not be found, the training still runs
        draft = record.with_suffix(".new")  # whole or not at all: a killed node must find its orphan again
        draft.write_text(json.dumps({"pid": process.pid, "started": _started(process.pid)}), encoding="ascii")
        draft.replace(record)

    def read() -> None:
        with pipe:
            split(pipe.fileno(), take)

    def wait() -> None:
        process.wait()
        on_end()

    reader = threading.Thread(target=read, name="output", daemon=True)
    reader.start()
    threading.Thread(target=wait, name="child", daemon=True).start()
    return Child(process, record, reader)


def kill_orphan(record: Path) -> bool:
    """Kill the command that a killed node left running; True when there was one. A reused process id is left alone."""
    try:
        remembered = json.loads(record.read_bytes())
        pid, started = int(remembered["pid"]), int(remembered["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    alive = _started(pid) == started
    if alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        record.unlink()
    return alive


def _started(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot, as /proc says it; -1 where it does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat[stat.rfind(")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return -1
