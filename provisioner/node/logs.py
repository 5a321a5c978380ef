"""The command's output: a local file, the last lines in memory, and compressed parts in the store.

Nothing here raises for a full disk or a store that is away, and nothing makes the command wait.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import zstandard

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store
from provisioner.errors import FailoverError

LAST_LINES = 20
LONGEST_LINE = 64 * 1024
BUFFER_BYTES = 16 * 1024 * 1024
PART_BYTES = 4 * 1024 * 1024
LOCAL_BYTES = 64 * 1024 * 1024


class Log:
    """Takes lines from any thread. ``every_s`` is the time between two uploads, in seconds."""

    def __init__(
        self,
        path: Path,
        store: Store,
        epoch: int,
        *,
        redact: Callable[[str], str] = str,
        every_s: float = 3.0,
        echo: Callable[[str], object] = lambda _line: None,
    ) -> None:
        """Open nothing yet. ``echo`` is called with each of the node's own lines (for the machine's console)."""
        self.last = deque[bytes](maxlen=LAST_LINES)
        self.last_key = ""
        """Key of the newest part in the store."""
        self._path = path
        self._store = store
        self._epoch = epoch
        self._redact = redact
        self._every_s = every_s
        self._echo = echo
        self._lock = threading.Lock()
        self._buffer = deque[bytes]()
        self._buffered = 0
        self._dropped = 0
        self._local: BinaryIO | None = None
        self._local_bytes = 0
        self._number: int | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Begin to upload."""
        self._thread.start()

    def say(self, line: str) -> None:
        """Write one line of the node's own."""
        text = self._redact(line)
        self._echo(text)
        self._take(f"[failover] {text}".encode("utf-8", "backslashreplace"))

    def line(self, line: bytes) -> None:
        """Take one line of the command, without its end."""
        self._take(self._redact(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"))

    def finish(self, timeout_s: float) -> None:
        """Upload what is left, for ``timeout_s`` seconds at most."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def stop(self) -> None:
        """Upload nothing more."""
        with self._lock:
            self._buffer.clear()
            self._buffered = self._dropped = 0
        self._closing.set()

    def keep_last_lines(self) -> None:
        """Put the last lines into the store under a key of their own. Raises CloudError."""
        self._store.put(layout.last_lines(self._epoch), b"\n".join(self.last) + b"\n")

    def _take(self, line: bytes) -> None:
        line += b"\n"
        with self._lock:
            self.last.append(line[:-1])
            self._buffer.append(line)
            self._buffered += len(line)
            while self._buffered > BUFFER_BYTES:  # the store has been away for long: the newest lines matter most
                self._buffered -= len(self._buffer.popleft())
                self._dropped += 1
            self._write_local(line)

    def _write_local(self, line: bytes) -> None:
        try:
            if self._local is None or self._local_bytes > LOCAL_BYTES:
                if self._local is not None:
                    self._local.close()
                    self._path.replace(self._path.with_suffix(".1.txt"))
                descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._local = os.fdopen(descriptor, "ab", buffering=0)
                self._local_bytes = os.fstat(descriptor).st_size
            self._local.write(line)
            self._local_bytes += len(line)
        except OSError:  # disk full: the store still gets it
            self._local = None

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            self._upload()
        self._upload()
        if self._local is not None:
            with contextlib.suppress(OSError):
                self._local.close()

    def _upload(self) -> None:
        while part := self._part():
            try:
                if self._number is None:  # a node that was restarted goes on after its last part
                    self._number = len(self._store.objects(layout.logs(self._epoch)))
                key = layout.log_part(self._epoch, self._number)
                self._store.put(key, zstandard.ZstdCompressor(level=3).compress(b"".join(part)))
            except FailoverError:
                self._give_back(part)
                return
            self._number += 1
            self.last_key = key

    def _part(self) -> list[bytes]:
        part: list[bytes] = []
        size = 0
        with self._lock:
            if self._dropped:
                part.append(f"[failover] {self._dropped} lines are missing here\n".encode())
                self._dropped = 0
            while self._buffer and size < PART_BYTES:
                part.append(self._buffer.popleft())
                size += len(part[-1])
                self._buffered -= len(part[-1])
        return part

    def _give_back(self, part: list[bytes]) -> None:
        with self._lock:
            self._buffer.extendleft(reversed(part))
            self._buffered += sum(map(len, part))


def split(descriptor: int, take: Callable[[bytes], None]) -> None:
    """Read a pipe to its end and hand over its lines. A carriage return ends a line too: progress bars write it."""
    rest = b""
    while data := _read(descriptor):
        *lines, rest = (rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if line:
                take(line[:LONGEST_LINE])
        if len(rest) > LONGEST_LINE:
            take(rest[:LONGEST_LINE])
            rest = b""
    if rest:
        take(rest)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # closed under our feet at the very end
        return b""
