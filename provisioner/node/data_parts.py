"""A file that comes in parts, several at once, and is taken up again where a dead process left it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

SEGMENT_BYTES = 16 * 1024 * 1024
"""What one request brings."""
NOTE_BYTES = 1024 * 1024
"""After so many bytes it is written down what is there: no more than this is fetched again, for each request."""

Span = tuple[int, int]


class Part:
    """``<path>`` holds the bytes, ``<path>.map`` what of them is there. ``state`` tells one content from another.

    A map of another state, or of another boot of the machine (after a power cut the disk may hold holes where the map
    has bytes), is not believed. Raises OSError.
    """

    def __init__(self, path: Path, size: int, state: str, boot: str) -> None:
        """Open what is there, or begin."""
        self.path = path
        self.size = size
        self._map = path.with_name(f"{path.name}.map")
        self._lock = threading.Lock()
        self._head = json.dumps([size, state, boot])
        self._spans = joined(_noted(self._map, self._head, size)) if path.exists() else []
        if not self._spans:
            self._map.unlink(missing_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_size != size:
            os.ftruncate(self._file, size)
        self.there = sum(end - start for start, end in self._spans)
        """Bytes that were there already."""
        self._open = True

    def segments(self, size: int = SEGMENT_BYTES) -> list[Span]:
        """Return what is missing, in pieces for one request each."""
        return [
            (at, min(at + size, end)) for start, end in gaps(self._spans, self.size) for at in range(start, end, size)
        ]

    def writer(self, start: int) -> Writer:
        """Return what takes the bytes of one request."""
        return Writer(self, start)

    def is_whole(self) -> bool:
        """Say whether every byte is there."""
        with self._lock:
            return not any(gaps(self._spans, self.size))

    def close(self, *, discard: bool = False) -> None:
        """Close the file. ``discard``: it and its map go. May be called again."""
        with self._lock:
            if self._open:
                os.close(self._file)
            self._open = False
        if discard:
            self._map.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)

    def forget_map(self) -> None:
        """Remove the map: the file is finished."""
        self._map.unlink(missing_ok=True)

    def write(self, place: int, data: memoryview) -> None:
        """Write bytes at a place."""
        while data:
            count = os.pwrite(self._file, data, place)
            place, data = place + count, data[count:]

    def note(self, start: int, end: int) -> None:
        """Take note of bytes that were written."""
        with self._lock:
            self._spans = joined([*self._spans, (start, end)])
            if self._spans == [(0, self.size)]:
                return  # it is about to be finished
            fresh = not self._map.exists()
            with self._map.open("a", encoding="ascii") as file:
                file.write((f"{self._head}\n" if fresh else "") + f"{start} {end}\n")


class Writer:
    """Takes the bytes of one request, in order, and writes down from time to time what is there."""

    def __init__(self, part: Part, start: int) -> None:
        """Write nothing yet."""
        self._part = part
        self._noted = self._end = start

    def take(self, place: int, data: memoryview) -> None:
        """Write bytes."""
        self._part.write(place, data)
        self._end = place + len(data)
        if self._end - self._noted >= NOTE_BYTES:
            self.note()

    def note(self) -> None:
        """Write down what is there."""
        if self._end > self._noted:
            self._part.note(self._noted, self._end)
            self._noted = self._end


def joined(spans: list[Span]) -> list[Span]:
    """Return spans in order, without overlaps, those that touch as one."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def gaps(spans: list[Span], size: int) -> Iterator[Span]:
    """Yield what lies between spans that are in order, up to ``size``."""
    at = 0
    for start, end in spans:
        if start > at:
            yield at, start
        at = end
    if at < size:
        yield at, size


def _noted(path: Path, head: str, size: int) -> list[Span]:
    """Read a map. A line that was cut off, or makes no sense, counts as not there."""
    try:
        lines = path.read_text(encoding="ascii").split("\n")
    except (OSError, ValueError):
        return []
    if lines[0] != head:
        return []
    found = []
    for line in lines[1:-1]:  # what follows the last newline was cut off
        try:
            start, end = map(int, line.split(" "))
        except ValueError:
            continue
        if 0 <= start < end <= size:
            found.append((start, end))
    return found
