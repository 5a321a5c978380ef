"""Copy checkpoints from one store to another: packs that the other one does not have, then the manifest.

A pack gets a key of its own in each store, since a key is written once in its life; the hash in the key tells what is
there already.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path

import blake3

from provisioner.checkpoint import layout
from provisioner.checkpoint.commit import commit, condemned, missing
from provisioner.checkpoint.fetch import DamagedPack, read
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import Blob, File, Manifest
from provisioner.checkpoint.restore import committed, load
from provisioner.checkpoint.store import Store
from provisioner.checkpoint.tree import Source, open_file
from provisioner.errors import Abandoned, CorruptCheckpoint, StoreError, Unstable
from provisioner.model import JobRef

THREADS = 8


@dataclass(frozen=True, slots=True)
class Copied:
    """A checkpoint that is in the other store for good. ``bytes`` and ``packs`` went there now."""

    key: str
    position: Position
    bytes: int
    packs: int
    seconds: float


def copy(
    source: Store,
    target: Store,
    position: Position,
    *,
    job: JobRef | None = None,
    entry: Path | None = None,
    threads: int = THREADS,
    cancel: threading.Event | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Copied:
    """Bring one checkpoint from ``source`` to ``target``; what is there already is not sent again.

    ``entry`` is where it lies on this disk: bytes that still match come from there. Every byte is checked on its way.
    Raises StoreError when there is no such checkpoint, CorruptCheckpoint when it is damaged, Abandoned, CloudError.
    """
    start = time.monotonic()
    manifest = load(source, position, job)
    if manifest is None:
        raise StoreError(f"{source.uri}/{layout.manifest(position)}: no such checkpoint of this job")
    copying = _Copying(source, target, manifest, entry, cancel or threading.Event())
    renamed, names, partial = copying.plan(job)
    copying.send(names, threads, progress)
    repaired = 0
    if partial or _loaded(target, position, job) != renamed or missing(target, renamed):
        renamed, repaired = commit(
            target, renamed, copying.blob, fence=lambda: None, told_to_stop=copying.told_to_stop, replace=partial
        )
    sent = sum(manifest.packs[identity] for identity in names)
    return Copied(layout.manifest(position), position, sent + repaired, len(names), time.monotonic() - start)


def outstanding(target: Store, manifest: Manifest) -> int:
    """Return how many bytes of a checkpoint's packs ``target`` does not have. Raises CloudError."""
    there = _there(target)
    return sum(size for identity, size in manifest.packs.items() if (_content(identity), size) not in there)


def _content(identity: str) -> str:
    """Return the part of a pack's id that says what is in it."""
    return identity.partition("-")[0]


def _there(store: Store) -> dict[tuple[str, int], str]:
    """Return the packs that may be referred to, by content and size."""
    doomed = condemned(store)
    there: dict[tuple[str, int], str] = {}
    for stored in store.objects(layout.PACKS):
        identity = layout.pack_of(stored.key)
        if identity and identity not in doomed:
            there[_content(identity), stored.size] = identity
    return there


def _loaded(store: Store, position: Position, job: JobRef | None) -> Manifest | None:
    try:
        return load(store, position, job)
    except CorruptCheckpoint:
        return None


class _Copying:
    def __init__(
        self, source: Store, target: Store, manifest: Manifest, entry: Path | None, cancel: threading.Event
    ) -> None:
        self._source = source
        self._target = target
        self._manifest = manifest
        self._entry = entry
        self._cancel = cancel
        self._content: dict[str, dict[int, tuple[File, int, Blob]]] = defaultdict(dict)
        self._blobs: dict[str, Blob] = {}
        """Where the source has a blob, by its hash."""
        for file, offset, blob in manifest.stored():
            self._content[blob.pack][blob.offset] = file, offset, blob
            self._blobs[blob.digest] = blob

    def told_to_stop(self) -> None:
        """Raise Abandoned when somebody wants an end."""
        if self._cancel.is_set():
            raise Abandoned("the copy was told to stop")

    def plan(self, job: JobRef | None) -> tuple[Manifest, dict[str, str], set[str]]:
        """Return the manifest as the target gets it, the packs to send and what they are called there, and the rest.

        A pack goes as it is only if this checkpoint uses all of it, since nobody could check the other bytes. What it
        needs of the rest is taken from checkpoints that the target has, or sent in new packs.
        """
        there = _there(self._target)
        sizes = {identity: size for (_, size), identity in there.items()}
        known = self._known(sizes, job)
        names: dict[str, str] = {}
        partial: set[str] = set()

        def moved(blob: Blob) -> Blob:
            if not blob.pack:
                return blob
            if blob.digest in known:
                return known[blob.digest]
            size = self._manifest.packs[blob.pack]
            name = there.get((_content(blob.pack), size)) or names.get(blob.pack)
            if name is None and _fills(sorted(self._content[blob.pack].items()), size):
                name = names[blob.pack] = f"{_content(blob.pack)}-{secrets.token_hex(4)}"
            if name is None:
                partial.add(blob.pack)
                name = blob.pack
            sizes[name] = size
            return changed(blob, pack=name)

        files = tuple(changed(file, blobs=tuple(moved(blob) for blob in file.blobs)) for file in self._manifest.files)
        packs = {blob.pack: sizes[blob.pack] for file in files for blob in file.blobs if blob.pack}
        return changed(self._manifest, packs=packs, files=files), names, partial

    def _known(self, sizes: Mapping[str, int], job: JobRef | None) -> dict[str, Blob]:
        """Return where the target has blobs, by their hashes: of this step, and of its newest checkpoint."""
        known: dict[str, Blob] = {}
        for position in [*committed(self._target)[:1], self._manifest.position]:
            manifest = _loaded(self._target, position, job)
            if manifest is None:
                continue
            for _, _, blob in manifest.stored():
                if sizes.get(blob.pack) == manifest.packs[blob.pack]:
                    known[blob.digest] = blob
        return known

    def send(self, names: dict[str, str], threads: int, progress: Callable[[int, int], None] | None) -> None:
        """Send packs, some at a time."""
        wanted = list(names)
        total = sum(self._manifest.packs[identity] for identity in wanted)
        done = 0
        failed = threading.Event()

        def one(identity: str) -> int:
            if failed.is_set():
                return 0
            try:
                self.told_to_stop()
                self._target.put(layout.pack(names[identity]), self._pack(identity))
            except BaseException:
                failed.set()
                raise
            return self._manifest.packs[identity]

        with ThreadPoolExecutor(threads, thread_name_prefix="copy") as pool:
            pending: set[Future[int]] = set()
            for identity in [*wanted, ""]:
                if identity:
                    pending.add(pool.submit(one, identity))
                if len(pending) > 2 * threads or not identity:
                    finished, pending = wait(pending, return_when=FIRST_COMPLETED) if identity else (pending, set())
                    done += sum(future.result() for future in finished)
                    if progress:
                        progress(done, total)

    def blob(self, file: File, offset: int, blob: Blob) -> bytes:
        """Return the bytes of one blob of the target, checked, from the disk or the source."""
        return self._local(file, offset, blob) or self._remote(self._blobs[blob.digest])

    def _pack(self, identity: str) -> bytes | memoryview:
        size = self._manifest.packs[identity]
        content = sorted(self._content[identity].items())
        if self._entry is not None and _fills(content, size):
            parts = [self._local(*place) for _, place in content]
            if all(part is not None for part in parts):
                return b"".join(part for part in parts if part is not None)
        data = read(self._source, identity, 0, size, size)
        for offset, (_, _, blob) in content:
            _check(blob, data[offset : offset + blob.length])
        return data

    def _local(self, file: File, offset: int, blob: Blob) -> bytes | None:
        if self._entry is None:
            return None
        path = f"{self._entry.parent}/{file.path}"
        data = bytearray(blob.length)
        try:
            with open_file(Source(path, file.path, os.lstat(path))) as opened:
                opened.read_into(memoryview(data), offset)
        except (OSError, Unstable):
            return None
        return bytes(data) if blake3.blake3(data).hexdigest() == blob.digest else None

    def _remote(self, blob: Blob) -> bytes:
        data = read(self._source, blob.pack, blob.offset, blob.length, self._manifest.packs[blob.pack])
        _check(blob, data)
        return bytes(data)


def _fills(content: list[tuple[int, tuple[File, int, Blob]]], size: int) -> bool:
    """Say whether blobs, by their offsets, lie side by side from the beginning of a pack to its end."""
    at = 0
    for offset, (_, _, blob) in content:
        if offset != at:
            return False
        at += blob.length
    return at == size


def _check(blob: Blob, data: memoryview) -> None:
    if blake3.blake3(data).hexdigest() != blob.digest:
        raise DamagedPack(f"{layout.PACKS}/{blob.pack} does not match its hashes", blob.pack)
