"""Save a file or directory as a checkpoint: what is new goes up first, in parallel, the manifest last."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import blake3

from provisioner.checkpoint import inputs, layout
from provisioner.checkpoint.commit import commit, condemned, worth_replacing
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import Blob, File, Manifest
from provisioner.checkpoint.packs import Buffers, Pack, Packer
from provisioner.checkpoint.restore import Progress, committed, load
from provisioner.checkpoint.store import Store
from provisioner.checkpoint.tree import STANDARD, Sizes, Source, Span, Tree, blob_bytes, open_file, scan, slices
from provisioner.errors import Abandoned, CorruptCheckpoint, Unstable
from provisioner.model import JobRef

THREADS = 16
READERS = 2


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint that is in the store for good. ``uploaded_bytes`` counts what was not there before."""

    key: str
    position: Position
    entry: str
    total_bytes: int
    uploaded_bytes: int
    seconds: float
    time: float
    """Unix time of the commit."""
    manifest: Manifest = field(repr=False)


@dataclass
class Saver:
    """Saves checkpoints of one job and epoch, one at a time. Takes about ``8 * (threads + 7)`` MiB of memory at most.

    ``fence`` is called right before each manifest is written and raises Fenced when a newer epoch rules.
    """

    store: Store
    job: JobRef | None
    epoch: int
    fence: Callable[[], None]
    threads: int = THREADS
    clock: Callable[[], float] = time.time
    cancel: threading.Event = field(default_factory=threading.Event)
    distrust: frozenset[str] = frozenset()
    """Ids of packs that may be damaged in the store: what is in them is sent again when it is needed."""
    only_new: bool = False
    """Replace no other checkpoint of the same step: StepTakenError."""
    sizes: Sizes = STANDARD
    _known: dict[bytes, tuple[str, int]] | None = field(default=None, init=False)
    """Where the newest checkpoint has its blobs: hash -> (pack, offset)."""
    _sizes: dict[str, int] = field(default_factory=dict, init=False)
    _there: dict[str, tuple[str, int]] = field(default_factory=dict, init=False)

    def save(
        self, entry: Path, step: int, metadata: Mapping[str, Any] | None = None, progress: Progress | None = None
    ) -> Commit:
        """Save ``entry`` (a file or directory) as the checkpoint of ``step``. ``metadata`` holds JSON values.

        Raises ConfigError for a step that has no place in a key, Unstable, Abandoned, Fenced, CloudError, OSError.
        Whatever it raises, nothing is committed; where the answer to the last write was lost, it may be there all the
        same, whole or passed over by restores.
        """
        start = time.monotonic()
        step = inputs.whole("step", step)
        key = layout.manifest(Position(self.epoch, step))
        tree = scan(entry)
        known = self._look_around()
        with Packer(
            self.store, self._there, threads=self.threads, told_to_stop=self._told_to_stop, sizes=self.sizes
        ) as packer:
            files = self._send(tree, known, packer, progress)
        manifest = self._manifest(tree, files, entry, step, metadata or {})
        if scan(entry).shape() != tree.shape():
            raise Unstable(f"{entry}: changed while it was read")
        sources = {source.name: source for source in tree.files}

        def read(file: File, offset: int, blob: Blob) -> bytes:
            return _read_again(sources[file.path], offset, blob)

        manifest, repaired = commit(
            self.store,
            manifest,
            read,
            fence=self.fence,
            told_to_stop=self._told_to_stop,
            replace=worth_replacing(manifest, self.sizes),
            only_new=self.only_new,
            sizes=self.sizes,
        )
        self._remember(manifest, manifest.packs)
        self._there.clear()  # one of them may be gone by now; what this checkpoint has is known
        return Commit(
            key=key,
            position=manifest.position,
            entry=entry.name,
            total_bytes=manifest.size,
            uploaded_bytes=packer.sent_bytes + repaired,
            seconds=time.monotonic() - start,
            time=manifest.time,
            manifest=manifest,
        )

    def _look_around(self) -> dict[bytes, tuple[str, int]]:
        """Find out, once, what the store holds: the newest checkpoint, and packs of a save that was cut short."""
        if self._known is None:
            with ThreadPoolExecutor(3, thread_name_prefix="look") as pool:  # in any order: the commit looks again
                doomed = pool.submit(condemned, self.store)
                packs = pool.submit(self.store.objects, layout.PACKS)
                newest = pool.submit(self._newest)
            lost = doomed.result() | self.distrust
            there = {}
            for stored in packs.result():
                identity = layout.pack_of(stored.key)
                if identity and identity not in lost:
                    there[identity] = stored.size
                    self._there[identity.partition("-")[0]] = identity, stored.size
            self._remember(newest.result(), there)
        return self._known or {}

    def _newest(self) -> Manifest | None:
        for position in committed(self.store):
            try:
                if (manifest := load(self.store, position, self.job)) is not None:
                    return manifest
            except CorruptCheckpoint:
                continue
        return None

    def _remember(self, manifest: Manifest | None, there: Mapping[str, int]) -> None:
        """Keep where a checkpoint has its blobs, as far as ``there`` has the packs at their size."""
        self._known = {}
        self._sizes = dict(manifest.packs) if manifest else {}
        for _, _, blob in manifest.stored() if manifest else ():
            if there.get(blob.pack) == self._sizes[blob.pack]:
                self._known[bytes.fromhex(blob.digest)] = blob.pack, blob.offset

    def _told_to_stop(self) -> None:
        if self.cancel.is_set():
            raise Abandoned("the save was told to stop")

    def _send(
        self, tree: Tree, known: dict[bytes, tuple[str, int]], packer: Packer, progress: Progress | None
    ) -> list[list[_Piece]]:
        """Read everything, send what is new, and return the pieces of each file."""
        files: list[list[_Piece]] = [[] for _ in tree.files]
        fresh: dict[bytes, tuple[Pack, int]] = {}
        total, done = tree.size, 0
        with _Reading(tree, self.sizes, ahead=READERS + 2, buffers=self.threads + READERS + 3) as reading:
            for slice_ in reading:
                self._told_to_stop()
                place(slice_, known, fresh, packer, reading)
                for piece in slice_.pieces:
                    files[piece.file].append(
                        piece._replace(place=known.get(piece.digest) or fresh.get(piece.digest))
                        if piece.digest
                        else piece
                    )
                    done += piece.length
                if progress:
                    progress(done, total)
        return files

    def _manifest(
        self, tree: Tree, pieces: list[list[_Piece]], entry: Path, step: int, metadata: Mapping[str, Any]
    ) -> Manifest:
        packs: dict[str, int] = {}
        files = []
        for source, parts in zip(tree.files, pieces, strict=True):
            blobs = tuple(_joined(self._blob(piece, packs) for piece in parts))
            files.append(File(source.name, source.info.st_size, source.info.st_mode & 0o777, blobs))
        return Manifest(
            job=self.job,
            epoch=self.epoch,
            step=step,
            entry=entry.name,
            time=round(self.clock(), 3),
            packs=packs,
            files=tuple(files),
            folders=tuple(tree.folders),
            links=tuple(tree.links),
            metadata=metadata,
        )

    def _blob(self, piece: _Piece, packs: dict[str, int]) -> Blob:
        if piece.place is None:
            return Blob(piece.length)
        pack, offset = piece.place
        identity, size = (pack.identity, pack.size) if isinstance(pack, Pack) else (pack, self._sizes[pack])
        packs[identity] = size
        return Blob(piece.length, identity, offset, piece.digest.hex())


class _Piece(NamedTuple):
    """A stretch of a file that was read and hashed; no hash for a hole. ``at`` is its place in the buffer."""

    file: int
    length: int
    digest: bytes
    at: int
    place: tuple[str | Pack, int] | None = None


@dataclass(slots=True)
class _Slice:
    pieces: list[_Piece]
    buffer: bytearray | None
    size: int


class _Reading:
    """Reads and hashes a tree ahead of the caller, in order. As a context it ends its threads."""

    def __init__(self, tree: Tree, sizes: Sizes, *, ahead: int, buffers: int) -> None:
        self._tree = tree
        self.sizes = sizes
        self._ahead = ahead
        self._buffers = Buffers(buffers, sizes.pack)
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="read")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._buffers.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[_Slice]:
        pending: deque[Future[_Slice]] = deque()
        for spans in slices(self._tree, self.sizes):
            pending.append(self._pool.submit(self._read, spans))
            if len(pending) > self._ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def give_back(self, slice_: _Slice) -> None:
        """Let the buffer of a slice be used again."""
        if slice_.buffer is not None:
            self._buffers.give_back(slice_.buffer)

    def _read(self, spans: list[Span]) -> _Slice:
        if spans[0].hole:
            return _Slice([_Piece(spans[0].file, spans[0].length, b"", 0)], None, 0)
        buffer = self._buffers.take()
        view = memoryview(buffer)
        pieces: list[_Piece] = []
        at = 0
        for span in spans:
            source = self._tree.files[span.file]
            with open_file(source) as file:
                file.read_into(view[at : at + span.length], span.offset)
            blob = blob_bytes(source.info.st_size, self.sizes)
            end = at + span.length
            while at < end:
                length = min(blob, end - at)
                data = view[at : at + length]
                digest = b"" if is_zero(data) else blake3.blake3(data).digest()
                pieces.append(_Piece(span.file, length, digest, at))
                at += length
        return _Slice(pieces, buffer, at)


def place(
    slice_: _Slice,
    known: Mapping[bytes, object],
    fresh: dict[bytes, tuple[Pack, int]],
    packer: Packer,
    reading: _Reading,
) -> None:
    """Give every new blob of a slice a place in a pack. The buffer goes back when nothing needs it any more."""
    if slice_.buffer is None:
        return
    view = memoryview(slice_.buffer)
    new = {piece.digest: piece for piece in slice_.pieces if piece.digest and piece.digest not in known}
    new = {digest: piece for digest, piece in new.items() if digest not in fresh}
    if len(new) == len(slice_.pieces) and slice_.size >= reading.sizes.pack // 2:
        pack = packer.whole(new, view[: slice_.size], lambda: reading.give_back(slice_))
        fresh.update((digest, (pack, piece.at)) for digest, piece in new.items())
        return
    for digest, piece in new.items():
        fresh[digest] = packer.add(digest, view[piece.at : piece.at + piece.length])
    reading.give_back(slice_)


def is_zero(data: memoryview) -> bool:
    """Say whether all bytes are zero. Most data say no in their first bytes."""
    if any(data[:64]):
        return False
    return bytes(data).count(0) == len(data)


def _joined(blobs: Iterator[Blob]) -> Iterator[Blob]:
    """Make one hole of several in a row."""
    hole = 0
    for blob in blobs:
        if not blob.pack:
            hole += blob.length
            continue
        if hole:
            yield Blob(hole)
            hole = 0
        yield blob
    if hole:
        yield Blob(hole)


def _read_again(source: Source, offset: int, blob: Blob) -> bytes:
    """Read a blob from the disk once more. Raises Unstable when it is not what it was."""
    data = bytearray(blob.length)
    with open_file(source) as file:
        file.read_into(memoryview(data), offset)
    if blake3.blake3(data).hexdigest() != blob.digest:
        raise Unstable(f"{source.path}: changed while it was read")
    return bytes(data)
