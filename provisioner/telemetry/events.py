"""The event log: one JSON object a line, for people's tools and for the report. Standard library only.

The controller and the node both write it. A log that cannot be written (full disk) never stops a job: the failure is
counted and the caller goes on.
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from provisioner.clock import now as unix_now

HIDDEN = "[hidden]"
_SHORTEST_SECRET = 6


class Redactor:
    """Takes known secrets out of text. Values shorter than 6 characters are left alone: they would eat words."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Take the secrets, longest first, so that one which contains another goes whole."""
        known = sorted({value for value in secrets if len(value) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(value) for value in known)) if known else None

    def __call__(self, text: str) -> str:
        """Return the text without the secrets."""
        return self._pattern.sub(HIDDEN, text) if self._pattern else text

    def __repr__(self) -> str:
        """Say nothing about the secrets."""
        return "Redactor()"


class EventLog:
    """Appends events to a file that only its owner can read. Safe to use from several threads and processes."""

    def __init__(
        self,
        path: Path,
        *,
        redact: Callable[[str], str] = str,
        clock: Callable[[], float] = unix_now,
        also: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Open nothing yet. ``clock`` gives Unix seconds; ``also`` is called with every event, e.g. to show it."""
        self.path = path
        self.lost = 0
        """How many events could not be written, or shown."""
        self._redact = redact
        self._clock = clock
        self._also = also
        self._lock = threading.Lock()

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Append ``{"time": ..., "kind": kind, **fields}``. Never raises for a disk; values must suit JSON."""
        event = {"time": round(self._clock(), 3), "kind": kind, **fields}
        line = self._redact(json.dumps(event, ensure_ascii=False, default=str)) + "\n"
        with self._lock:
            try:
                self._append(line.encode("utf-8", "backslashreplace"))
            except OSError:
                self.lost += 1
        if self._also is not None:
            try:
                self._also(json.loads(line))
            except (OSError, ValueError):  # whoever listened has gone away; a job does not end for that
                self.lost += 1

    def _append(self, line: bytes) -> None:
        # One write on an O_APPEND descriptor: lines of several processes do not mix.
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if (
                size and os.pread(descriptor, 1, size - 1) != b"\n"
            ):  # torn by a full disk or a power cut: this one is not
                line = b"\n" + line
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a log, oldest first. A torn line (its writer was killed) or a missing file is passed over."""
    try:
        lines = path.open("rb")
    except FileNotFoundError:
        return
    with lines:
        for line in lines:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict) and "kind" in event:
                yield event
