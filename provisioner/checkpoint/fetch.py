"""Fetch what a manifest names: ranged reads of packs, in parallel, every blob checked against its hash."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import blake3

from provisioner.checkpoint import layout
from provisioner.checkpoint.manifest import Blob, File, Manifest
from provisioner.checkpoint.store import Store
from provisioner.checkpoint.tree import STANDARD
from provisioner.errors import Abandoned, CorruptCheckpoint, StoreError

GAP_BYTES = 256 * 1024
"""Bytes between two blobs of a pack that are rather read than paid for with another request."""


class DamagedPack(CorruptCheckpoint):
    """A pack is gone, or holds bytes that are not what was saved."""

    def __init__(self, message: str, identity: str) -> None:
        super().__init__(message)
        self.identity = identity


class Sink(Protocol):
    """Takes what was fetched, from several threads: the bytes of one blob in pieces and in order, from one thread.

    They are checked at the end of the blob. If they are wrong, they come once more, or the whole fetch fails.
    """

    def __call__(self, file: File, offset: int, data: memoryview, /) -> None:
        """Take bytes that belong at ``offset`` of ``file``."""


@dataclass(slots=True)
class Range:
    """Bytes of a pack that one request brings, and every place that they belong to: by where they stand in the pack."""

    pack: str
    start: int
    end: int
    size: int
    """Of the whole pack."""
    targets: list[tuple[File, int, Blob]] = field(default_factory=list)


def ranges(manifest: Manifest, done: Container[str] = ()) -> list[Range]:
    """Return the requests that bring everything but the blobs whose hashes are in ``done``, in the order of files."""
    by_pack: dict[str, list[tuple[File, int, Blob]]] = defaultdict(list)
    for file, offset, blob in manifest.stored():
        if blob.digest not in done:
            by_pack[blob.pack].append((file, offset, blob))
    return [found for pack, targets in by_pack.items() for found in _joined(pack, manifest.packs[pack], targets)]


def _joined(pack: str, size: int, targets: list[tuple[File, int, Blob]]) -> Iterator[Range]:
    current: Range | None = None
    last = Blob(0)
    for target in sorted(targets, key=lambda target: (target[2].offset, target[2].length)):
        blob = target[2]
        end = blob.offset + blob.length
        again = current is not None and (blob.offset, blob.length) == (last.offset, last.length)
        if (
            current is None
            or (blob.offset < current.end and not again)  # no writer makes blobs that overlap
            or blob.offset > current.end + GAP_BYTES
            or end - current.start > STANDARD.pack
        ):
            if current is not None:
                yield current
            current = Range(pack, blob.offset, end, size)
        current.end = end
        current.targets.append(target)
        last = blob
    if current is not None:
        yield current


def fetch(
    store: Store,
    wanted: Iterable[Range],
    sink: Sink,
    *,
    threads: int,
    cancel: threading.Event,
    on_bytes: Callable[[int], None] = lambda _count: None,
    on_damage: Callable[[DamagedPack], None] | None = None,
) -> int:
    """Bring every range into the sink, about ``8 * threads`` MiB of them at a time; return the bytes fetched.

    ``on_bytes`` is told, in the caller's thread, of every finished range. With ``on_damage``, told in other threads,
    damage is no end. Raises DamagedPack, Abandoned, CloudError, OSError and what the sink raises, the first that
    happens.
    """
    stop = threading.Event()

    def bring(part: Range) -> int:
        if stop.is_set() or cancel.is_set():
            return 0
        try:
            return _bring(store, part, sink)
        except BaseException as error:
            if on_damage is not None and isinstance(error, DamagedPack):
                on_damage(error)
                return part.end - part.start
            stop.set()
            raise

    fetched = 0
    with ThreadPoolExecutor(threads, thread_name_prefix="fetch") as pool:
        pending: set[Future[int]] = set()
        try:
            for part in wanted:
                pending.add(pool.submit(bring, part))
                if len(pending) > 2 * threads:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    fetched += _collect(done, on_bytes)
            for future in as_completed(pending):
                fetched += _collect({future}, on_bytes)
        except BaseException:
            stop.set()
            raise
    if cancel.is_set():
        raise Abandoned("the restore was told to stop")
    return fetched


def _collect(done: set[Future[int]], on_bytes: Callable[[int], None]) -> int:
    total = sum(future.result() for future in done)
    if total:
        on_bytes(total)
    return total


def _bring(store: Store, part: Range, sink: Sink) -> int:
    """Fetch one range, once more where a hash does not match: the line may have changed it, not the store."""
    length = part.end - part.start
    for last in (False, True):
        landing = _Landing(part, sink)
        with _told_apart(store, part.pack, part.end):
            found = store.stream(layout.pack(part.pack), part.start, length, landing.take, whole=length == part.size)
        if not found:
            raise DamagedPack(f"{layout.PACKS}/{part.pack} is missing", part.pack)
        if landing.wrong is None:
            return length
        if last:
            text = f"{layout.PACKS}/{part.pack} does not match its hashes ({landing.wrong.path})"
            raise DamagedPack(text, part.pack)
    raise AssertionError


class _Landing:
    """Cuts a stream into blobs, gives their bytes to the sink, and checks each one at its end."""

    def __init__(self, part: Range, sink: Sink) -> None:
        self.wrong: File | None = None
        """The first file with a blob that does not match."""
        self._sink = sink
        self._left = deque(part.targets)
        self._start = part.start
        self._next()

    def take(self, place: int, data: memoryview) -> None:
        at = self._start + place
        end = at + len(data)
        while self._targets and (blob := self._targets[0][2]).offset < end:
            inner = max(0, at - blob.offset)
            piece = data[max(0, blob.offset - at) : blob.offset + blob.length - at]
            self._hash.update(piece)
            for file, offset, _ in self._targets:
                self._sink(file, offset + inner, piece)
            if blob.offset + blob.length > end:
                return
            if any(self._hash.hexdigest() != target[2].digest for target in self._targets):
                self.wrong = self.wrong or self._targets[0][0]
            self._next()

    def _next(self) -> None:
        """Turn to the next blob, and to every place that wants it."""
        self._hash = blake3.blake3()
        self._targets: list[tuple[File, int, Blob]] = []
        while self._left and (not self._targets or self._left[0][2].offset == self._targets[0][2].offset):
            self._targets.append(self._left.popleft())


def read(store: Store, pack: str, start: int, length: int, size: int) -> memoryview:
    """Read a stretch of a pack of ``size`` bytes. Raises DamagedPack when it is not there or too short, CloudError."""
    with _told_apart(store, pack, start + length):
        found = store.get_range(layout.pack(pack), start, length, whole=length == size)
    if found is None:
        raise DamagedPack(f"{layout.PACKS}/{pack} is missing", pack)
    return memoryview(found)


@contextmanager
def _told_apart(store: Store, pack: str, end: int) -> Iterator[None]:
    """Raise DamagedPack where a store refuses because the pack ends before ``end``: each says that in its own way."""
    try:
        yield
    except StoreError as error:
        size = store.size(layout.pack(pack))
        if size is None:  # gone while it was read
            raise DamagedPack(f"{layout.PACKS}/{pack} is missing", pack) from error
        if size >= end:
            raise
        raise DamagedPack(f"{layout.PACKS}/{pack} is cut short", pack) from error
