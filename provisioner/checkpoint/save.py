"""Save a file or directory as a checkpoint: new chunks first, in parallel, the manifest last."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import blake3

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import File, Folder, Link, Manifest, decode, encode
from provisioner.checkpoint.store import Store
from provisioner.errors import Abandoned, CorruptCheckpoint, StoreError, Unstable
from provisioner.model import JobRef

CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint that is in the store for good. ``uploaded_bytes`` counts new chunks only."""

    key: str
    position: Position
    entry: str
    total_bytes: int
    uploaded_bytes: int
    seconds: float
    time: float
    """Unix time of the commit."""


@dataclass
class Saver:
    """Saves checkpoints of one job and epoch. Holds at most ``2 * threads`` chunks in memory.

    ``fence`` is called right before the manifest is written and raises Fenced when a newer epoch rules.
    """

    store: Store
    job: JobRef
    epoch: int
    fence: Callable[[], None]
    chunk_bytes: int = CHUNK_BYTES
    threads: int = 4
    clock: Callable[[], float] = time.time
    cancel: threading.Event = field(default_factory=threading.Event)
    distrust: frozenset[str] = frozenset()
    """Hashes of chunks that the store holds damaged: they are uploaded again when they are needed."""
    _known: set[str] | None = field(default=None, init=False)

    def save(self, entry: Path, step: int) -> Commit:
        """Save ``entry`` (a file or directory) as the checkpoint of ``step``.

        Raises Unstable, Abandoned, Fenced, CloudError, OSError. Whatever it raises, nothing is committed.
        """
        start = time.monotonic()
        found = _scan(entry)
        uploaded = _Uploads(self, self._chunks_in_store())
        files = []
        with uploaded:
            for path, name, info in found.files:
                chunks = tuple(uploaded.chunk(data) for data in _read(path, info, self.chunk_bytes, self._told_to_stop))
                files.append(File(name, info.st_size, stat.S_IMODE(info.st_mode) & 0o777, chunks))
        manifest = Manifest(
            job=self.job,
            epoch=self.epoch,
            step=step,
            entry=entry.name,
            time=round(self.clock(), 3),
            chunk_bytes=self.chunk_bytes,
            files=tuple(files),
            folders=tuple(found.folders),
            links=tuple(found.links),
        )
        if _scan(entry).shape() != found.shape():
            raise Unstable(f"{entry}: changed while it was read")
        self._told_to_stop()
        self.fence()
        key = self._commit(manifest)
        seconds = time.monotonic() - start
        return Commit(key, manifest.position, entry.name, manifest.size, uploaded.bytes, seconds, manifest.time)

    def _commit(self, manifest: Manifest) -> str:
        key = layout.manifest(manifest.position)
        data = encode(manifest)
        if self.store.create(key, data):
            return key
        there = self.store.get(key)
        if there == data:  # our own write, whose answer was lost
            return key
        if there is not None:
            _refuse_foreign(there, manifest, f"{self.store.uri}/{key}")
        # A 409 that stored nothing, or this epoch's own older save of the same step (the node was restarted, or the
        # trainer replaced it): the fence says that it is ours to replace.
        self.store.put(key, data)
        return key

    def _chunks_in_store(self) -> set[str]:
        if self._known is None:
            prefix = f"{layout.CHUNKS}/"
            listed = {stored.key.removeprefix(prefix) for stored in self.store.objects(layout.CHUNKS)}
            self._known = listed - self.distrust
        return self._known

    def _told_to_stop(self) -> None:
        if self.cancel.is_set():
            raise Abandoned("the save was told to stop")


@dataclass
class _Found:
    """What a directory holds, with what tells a changed file from an unchanged one."""

    files: list[tuple[Path, str, os.stat_result]] = field(default_factory=list)
    folders: list[Folder] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    def shape(self) -> tuple[object, ...]:
        """Return names, sizes, inodes and times of change; not times of access, which reading moves."""
        return tuple((name, _identity(info)) for _, name, info in self.files), tuple(self.folders), tuple(self.links)


def _identity(info: os.stat_result) -> tuple[int, ...]:
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode


def _scan(entry: Path) -> _Found:
    """Walk an entry in a fixed order. Raises Unstable when it vanishes. Sockets, pipes and devices are left out."""
    found = _Found()
    pending = [(entry, entry.name)]
    try:
        while pending:
            path, name = pending.pop()
            info = path.lstat()
            if stat.S_ISREG(info.st_mode):
                found.files.append((path, name, info))
            elif stat.S_ISLNK(info.st_mode):
                found.links.append(Link(name, str(path.readlink())))
            elif stat.S_ISDIR(info.st_mode):
                found.folders.append(Folder(name, stat.S_IMODE(info.st_mode) & 0o777))
                pending += [(child, f"{name}/{child.name}") for child in sorted(path.iterdir(), reverse=True)]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unstable(f"{entry}: vanished while it was read") from error
    return found


def _read(path: Path, info: os.stat_result, size: int, told_to_stop: Callable[[], None]) -> Iterator[bytes]:
    """Yield a file in chunks. Raises Unstable when it is not, at the end, the file that was found."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise Unstable(f"{path}: vanished while it was read") from error
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        left = info.st_size
        while left:
            told_to_stop()
            data = _exactly(file.fileno(), min(size, left))
            if not data:
                break
            left -= len(data)
            yield data
        if left or _identity(os.fstat(file.fileno())) != _identity(info):
            raise Unstable(f"{path}: changed while it was read")


def _exactly(descriptor: int, size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end of the file."""
    parts: list[bytes] = []
    while size and (data := os.read(descriptor, size)):
        parts.append(data)
        size -= len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Uploads:
    """Puts chunks that the store does not have, a bounded number at a time. As a context it waits for all of them."""

    def __init__(self, saver: Saver, known: set[str]) -> None:
        self.bytes = 0
        self._store = saver.store
        self._known = known
        self._room = threading.BoundedSemaphore(2 * saver.threads)
        self._pool = ThreadPoolExecutor(saver.threads, thread_name_prefix="upload")
        self._pending: dict[str, Future[None]] = {}

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            self._collect()

    def chunk(self, data: bytes) -> str:
        """Take one chunk and return its hash. Raises what an earlier upload has met."""
        digest = blake3.blake3(data).hexdigest()
        if digest in self._known or digest in self._pending:
            return digest
        self._room.acquire()
        self._collect(finished_only=True)
        self._pending[digest] = self._pool.submit(self._put, digest, data)
        self.bytes += len(data)
        return digest

    def _put(self, digest: str, data: bytes) -> None:
        try:
            self._store.put(layout.chunk(digest), data)
        finally:
            self._room.release()

    def _collect(self, *, finished_only: bool = False) -> None:
        for digest, future in list(self._pending.items()):
            if finished_only and not future.done():
                continue
            future.result()
            self._known.add(digest)
            del self._pending[digest]


def _refuse_foreign(there: bytes, manifest: Manifest, where: str) -> None:
    try:
        other = decode(there)
    except CorruptCheckpoint:
        return
    if other.job != manifest.job:
        raise StoreError(
            f"{where}: belongs to another job named {other.job.name}",
            hint="give the jobs different names, or different stores",
        )
