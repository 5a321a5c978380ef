"""Restore the newest checkpoint whose every byte matches its hash. What lies on the disk already is never trusted."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import blake3

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import File, Manifest, decode
from provisioner.checkpoint.store import Store
from provisioner.errors import Abandoned, CorruptCheckpoint, DiskFull
from provisioner.model import JobRef

RESERVE_BYTES = 64 * 1024 * 1024
"""What a restore leaves free on the disk."""


class _DamagedChunk(CorruptCheckpoint):
    """A chunk is there, but its bytes are wrong."""

    def __init__(self, message: str, digest: str) -> None:
        super().__init__(message)
        self.digest = digest


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint on the disk, verified: ``directory / entry`` holds it."""

    key: str
    position: Position
    directory: Path
    entry: str
    total_bytes: int
    seconds: float


def committed(store: Store) -> list[Position]:
    """List the positions of all manifests, best first, whether they are valid or not. Raises CloudError."""
    positions = (layout.position(stored.key) for stored in store.objects(layout.CHECKPOINTS))
    return sorted((position for position in positions if position is not None), reverse=True)


def load(store: Store, position: Position, job: JobRef) -> Manifest | None:
    """Read one manifest; None when it belongs to another job or is gone. Raises CorruptCheckpoint, CloudError."""
    data = store.get(layout.manifest(position))
    if data is None:
        return None
    manifest = decode(data)
    if manifest.position != position:
        raise CorruptCheckpoint("a manifest stands under the wrong key")
    return manifest if manifest.job == job else None


def restore(
    store: Store,
    job: JobRef,
    directory: Path,
    *,
    report: Callable[[str], None] = lambda _line: None,
    cancel: threading.Event | None = None,
    distrust: set[str] | None = None,
    threads: int = 8,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> Restored | None:
    """Bring the newest valid checkpoint of the job into a fresh directory below ``directory``; None when there is none.

    What does not match is passed over with a line to ``report``; the hashes of damaged chunks go into ``distrust``, for
    the saves that follow. Raises DiskFull, Abandoned, CloudError, OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for position in committed(store):
        key = layout.manifest(position)
        try:
            manifest = load(store, position, job)
            if manifest is None:
                report(f"{key} belongs to another job; passed over")
                continue
            _look_for_room(manifest, directory, free_bytes(directory))
            return _bring(store, manifest, directory, cancel or threading.Event(), threads)
        except CorruptCheckpoint as error:
            if isinstance(error, _DamagedChunk) and distrust is not None:
                distrust.add(error.digest)
            report(f"{key} is not usable ({error}); taking the next older one")
    return None


def _look_for_room(manifest: Manifest, directory: Path, free: int) -> None:
    if free < manifest.size + RESERVE_BYTES:
        raise DiskFull(
            f"the disk of {directory} has {free // 2**20} MiB free, "
            f"the checkpoint of step {manifest.step} needs {manifest.size // 2**20} MiB",
            hint="free space, or take a larger disk",
        )


def _bring(store: Store, manifest: Manifest, directory: Path, cancel: threading.Event, threads: int) -> Restored:
    start = time.monotonic()
    unfinished = Path(tempfile.mkdtemp(prefix=".restoring-", dir=directory))
    try:
        _write(store, manifest, unfinished, cancel, threads)
        final = directory / f"step-{manifest.step}-{unfinished.name.rsplit('-', 1)[-1]}"
        unfinished.rename(final)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    seconds = time.monotonic() - start
    key = layout.manifest(manifest.position)
    return Restored(key, manifest.position, final, manifest.entry, manifest.size, seconds)


def _write(store: Store, manifest: Manifest, root: Path, cancel: threading.Event, threads: int) -> None:
    """Write everything below ``root``, which is empty and ours. Links come last, so nothing is written through one."""
    try:
        for folder in manifest.folders:
            (root / folder.path).mkdir(parents=True, exist_ok=True)
        _write_files(store, manifest, root, cancel, threads)
        for link in manifest.links:
            (root / link.path).parent.mkdir(parents=True, exist_ok=True)
            (root / link.path).symlink_to(link.target)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise CorruptCheckpoint("two of its paths contradict each other") from error
    for file in manifest.files:
        (root / file.path).chmod(file.mode & 0o777)
    for folder in sorted(manifest.folders, key=lambda folder: folder.path, reverse=True):  # a parent may be read-only
        (root / folder.path).chmod(folder.mode & 0o777)


def _write_files(store: Store, manifest: Manifest, root: Path, cancel: threading.Event, threads: int) -> None:
    failed = threading.Event()

    def fetch(path: Path, digest: str, offset: int, size: int) -> None:
        if failed.is_set() or cancel.is_set():
            return
        try:
            _fetch(store, path, digest, offset, size)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(threads, thread_name_prefix="restore") as pool:
        pending: set[Future[None]] = set()
        for job in _pieces(manifest, root):
            pending.add(pool.submit(fetch, *job))
            if len(pending) >= 4 * threads:
                done, pending = wait(pending, return_when=FIRST_EXCEPTION, timeout=0.05)
                _raise_first(done)
        _raise_first(wait(pending).done)
    if cancel.is_set():
        raise Abandoned("the restore was told to stop")


def _raise_first(done: set[Future[None]]) -> None:
    for future in done:
        future.result()


def _pieces(manifest: Manifest, root: Path) -> Iterator[tuple[Path, str, int, int]]:
    """Yield (file, hash, offset, size) of every chunk; each file is created on the way."""
    for file in manifest.files:
        path = root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.truncate(descriptor, file.size)
        finally:
            os.close(descriptor)
        yield from _cut(file, path, manifest.chunk_bytes)


def _cut(file: File, path: Path, chunk_bytes: int) -> Iterator[tuple[Path, str, int, int]]:
    for number, digest in enumerate(file.chunks):
        offset = number * chunk_bytes
        yield path, digest, offset, min(chunk_bytes, file.size - offset)


def _fetch(store: Store, path: Path, digest: str, offset: int, size: int) -> None:
    try:
        key = layout.chunk(digest)
    except ValueError as error:
        raise CorruptCheckpoint("a manifest holds a hash that is none") from error
    data = store.get(key)
    if data is None:
        raise CorruptCheckpoint(f"{key} is missing")
    if len(data) != size or blake3.blake3(data).hexdigest() != digest:
        raise _DamagedChunk(f"{key} does not match its hash", digest)
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        written = 0
        while written < size:
            written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)
    finally:
        os.close(descriptor)
