"""The command's output: a local file, the last lines in memory, and compressed parts in the store.

Nothing here raises for a full disk or a store that is away, and nothing makes the command wait: output beyond a rate is
counted instead of kept, and a line says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store
from provisioner.errors import FailoverError
from provisioner.node.progress import STEP

LAST_LINES = 20
LONGEST_LINE = 64 * 1024
LINES_A_SECOND, BYTES_A_SECOND = 1000, 256 * 1024
MOST_LINES, MOST_BYTES = 20_000, 8 * 1024 * 1024
"""What may come at once after a quiet time."""
BUFFER_BYTES = 16 * 1024 * 1024
LINE_COST = 64
"""What a line in memory takes beside its bytes."""
PART_BYTES = 4 * 1024 * 1024
LOCAL_BYTES = 64 * 1024 * 1024
_PIPE_BYTES = 1024 * 1024
_PAUSE_S = 1.0
_STEP_EVERY_S = 0.1
_NEAR = 1024
_NO_SECRET = 4096
"""So much before a cut is left out where no blank ends a word: a secret must not show its first half."""


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
        self._part: bytes | None = None
        """Compressed, and not in the store yet. It stays as it is: a try whose answer was lost may have stored it."""
        self._ended = False
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
            self._part = None
        self._closing.set()

    def keep_last_lines(self) -> None:
        """Put the last lines into the store under a key of their own. Raises CloudError."""
        self._store.put(layout.last_lines(self._epoch), b"\n".join(self.last) + b"\n")

    def _take(self, line: bytes) -> None:
        line += b"\n"
        with self._lock:
            self.last.append(line[:-1])
            self._buffer.append(line)
            self._buffered += len(line) + LINE_COST
            while self._buffered > BUFFER_BYTES:  # the store has been away for long: the newest lines matter most
                self._buffered -= len(self._buffer.popleft()) + LINE_COST
                self._dropped += 1
            self._write_local(line)
            if self._ended:  # a late one: a hint that was read by the last heartbeat
                self._close()

    def _close(self) -> None:
        if self._local is not None:
            with contextlib.suppress(OSError):
                self._local.close()
        self._local = None

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
        with self._lock:
            self._ended = True
            self._close()

    def _upload(self) -> None:
        while (part := self._next_part()) is not None:
            try:
                if self._number is None:  # a node that was restarted goes on after its last part
                    listed = self._store.objects(layout.logs(self._epoch))
                    numbers = [layout.log_number(stored.key) for stored in listed]
                    self._number = max((number for number in numbers if number is not None), default=-1) + 1
                key = layout.log_part(self._epoch, self._number)
                self._store.put(key, part)
            except FailoverError:
                return
            self._part = None
            self._number += 1
            self.last_key = key

    def _next_part(self) -> bytes | None:
        with self._lock:
            if self._part is None and (self._buffer or self._dropped):
                self._part = zstandard.ZstdCompressor(level=3).compress(b"".join(self._lines()))
            return self._part

    def _lines(self) -> Iterator[bytes]:
        if self._dropped:
            yield f"[failover] {self._dropped} lines are missing here: the store was away for too long\n".encode()
            self._dropped = 0
        size = 0
        while self._buffer and size < PART_BYTES:
            line = self._buffer.popleft()
            self._buffered -= len(line) + LINE_COST
            size += len(line)
            yield line


class Quota:
    """How much output is kept: a rate, and what has been saved up in a quiet time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with all that may come at once. ``clock`` gives seconds."""
        self.clock = clock
        self._lines, self._bytes = float(MOST_LINES), float(MOST_BYTES)
        self._at = clock()

    def fill(self) -> None:
        """Add what the time since the last call brings."""
        now = self.clock()
        passed, self._at = now - self._at, now
        self._lines = min(MOST_LINES, self._lines + passed * LINES_A_SECOND)
        self._bytes = min(MOST_BYTES, self._bytes + passed * BYTES_A_SECOND)

    def take(self, size: int) -> bool:
        """Take one line of ``size`` bytes; False: no more for now."""
        if self._lines < 1 or self._bytes < size:
            return False
        self._lines -= 1
        self._bytes -= size
        return True


class _Splitter:
    """Makes lines of blocks. While the quota is used up, blocks are only counted, and looked through for steps."""

    def __init__(self, take: Callable[[bytes], None], quota: Quota) -> None:
        self._take = take
        self._quota = quota
        self._rest = b""
        self._cut = 0
        self._left_lines = self._left_bytes = 0
        self._since: float | None = None
        self._step = b""
        self._step_at = float("-inf")

    @property
    def leaving_out(self) -> bool:
        """Whether lines are left out just now."""
        return self._since is not None

    def feed(self, data: bytes) -> None:
        self._quota.fill()
        self.settle()
        block = self._rest + data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        whole, end, self._rest = block.rpartition(b"\n")
        if end:
            self._lines(whole)
        if len(self._rest) > LONGEST_LINE:  # what is beyond is counted, and told at the line's end
            kept = self._rest[:LONGEST_LINE]
            self._cut += len(self._rest) - len(kept)
            self._rest = kept

    def settle(self, *, at_once: bool = False) -> None:
        """Tell what was left out, when that has lasted a while."""
        if self._since is None or (not at_once and self._quota.clock() < self._since + _PAUSE_S):
            self._tell_step()
            return
        self._tell_step(at_once=True)
        self._take(
            f"[failover] {self._left_lines} lines ({self._left_bytes / 2**20:.1f} MiB) are left out here: "
            f"more than {LINES_A_SECOND} lines or {BYTES_A_SECOND // 1024} KiB a second".encode()
        )
        self._since = None
        self._left_lines = self._left_bytes = 0

    def end(self) -> None:
        if self._rest:
            self._lines(self._rest)
        self.settle(at_once=True)

    def _lines(self, text: bytes) -> None:
        """Take whole lines; the first may be the end of one that was cut."""
        if self._cut:
            first, more, text = text.partition(b"\n")
            self._one(_shortened(first[:LONGEST_LINE], self._cut + len(first) - LONGEST_LINE))
            self._cut = 0
            if not more:
                return
        if self._since is None:
            lines = text.split(b"\n")
            for number, line in enumerate(lines):
                if not self._one(line):
                    text = b"\n".join(lines[number + 1 :])
                    break
            else:
                return
        self._leave_out(text)

    def _one(self, line: bytes) -> bool:
        """Take a line, or leave it out; False from the first one on that is left out."""
        if len(line) > LONGEST_LINE:
            line = _shortened(line[:LONGEST_LINE], len(line) - LONGEST_LINE)
        if line and self._since is None and self._quota.take(len(line)):
            self._take(line)
        elif line:
            self._leave_out(line)
        return self._since is None

    def _leave_out(self, text: bytes) -> None:
        if not text:
            return
        if self._since is None:
            self._since = self._quota.clock()
        self._left_lines += text.count(b"\n") + 1
        self._left_bytes += len(text)
        found = text.lower().rfind(b"step")
        near = text[max(0, found - _NEAR) : found + _NEAR] if found >= 0 else b""
        for match in STEP.finditer(near):
            begin, end = near.rfind(b"\n", 0, match.start()) + 1, near.find(b"\n", match.start())
            self._step = near[begin : end if end >= 0 else len(near)]

    def _tell_step(self, *, at_once: bool = False) -> None:
        """Let the newest line with a step through, so that training which prints too much is not taken for hung."""
        now = self._quota.clock()
        if self._step and (at_once or now >= self._step_at + _STEP_EVERY_S):
            self._take(self._step)
            self._step, self._step_at = b"", now


def split(descriptor: int, take: Callable[[bytes], None], quota: Quota | None = None) -> None:
    """Read a pipe to its end and hand over its lines. A carriage return ends a line too: progress bars write it.

    A line is at most 64 KiB long. Of what comes faster than the quota allows only the newest lines that name a step are
    handed over, and a line that counts the rest.
    """
    with contextlib.suppress(OSError):  # the command need not wait for us so soon
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    splitter = _Splitter(take, quota or Quota())
    ready = select.poll()
    ready.register(descriptor)
    while True:
        if splitter.leaving_out and not ready.poll(_PAUSE_S * 1000):  # it has gone quiet
            splitter.settle(at_once=True)
        data = _read(descriptor)
        if not data:
            break
        splitter.feed(data)
    splitter.end()


def _shortened(line: bytes, missing: int) -> bytes:
    """Return the beginning of a line that is too long, without the word that the cut goes through."""
    blank = max(line.rfind(b" ", -_NO_SECRET), line.rfind(b"\t", -_NO_SECRET))
    kept = line[:blank] if blank >= 0 else line[:-_NO_SECRET]
    return kept + b" [failover: %d more bytes are left out]" % (missing + len(line) - len(kept))


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # closed under our feet at the very end
        return b""
