"""Restore the newest checkpoint whose every byte matches its hash. What lies on the disk already is never trusted."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from provisioner.checkpoint import layout
from provisioner.checkpoint.fetch import fetch, ranges
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import File, Manifest, decode
from provisioner.checkpoint.scratch import remove_left_over, scratch
from provisioner.checkpoint.seeds import Seeds
from provisioner.checkpoint.store import Store
from provisioner.errors import CloudError, ConfigError, CorruptCheckpoint, DiskFull, ExitCode, StoreError
from provisioner.model import JobRef

RESERVE_BYTES = 64 * 1024 * 1024
"""What a restore leaves free on the disk."""
THREADS = 16
_NOT_HERE = {errno.EFBIG, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.EOVERFLOW}
"""Sizes and names that another file system may take, and this one does not."""
_RESTORING = ".restoring-"
SCRATCH = ".failover-pull-"
"""How the name of a directory begins in which a pull gathers what it brings; the process id follows."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with (bytes done, bytes in all), from the caller's thread."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint on the disk, verified: ``directory / entry`` holds it. ``fetched_bytes`` came over the network."""

    key: str
    position: Position
    directory: Path
    entry: str
    total_bytes: int
    fetched_bytes: int
    seconds: float
    store_uri: str


class NotHereError(StoreError):
    """This machine's disk takes no such name or size. Other checkpoints, and other machines, may do."""

    exit_code = ExitCode.BAD_INPUT


def committed(store: Store) -> list[Position]:
    """List the positions of all manifests, best first, whether they are valid or not. Raises CloudError."""
    positions = (layout.position(stored.key) for stored in store.objects(layout.CHECKPOINTS))
    return sorted((position for position in positions if position is not None), reverse=True)


def load(store: Store, position: Position, job: JobRef | None) -> Manifest | None:
    """Read one manifest; None when it is gone, or belongs to another job than ``job`` (None: any will do).

    One that is damaged is read once more: the line may have cut it, not the store. Raises CorruptCheckpoint,
    CloudError.
    """
    data = store.get(layout.manifest(position))
    if data is None:
        return None
    try:
        manifest = decode(data)
    except CorruptCheckpoint:
        again = store.get(layout.manifest(position))
        if again is None or again == data:
            raise
        manifest = decode(again)
    if manifest.position != position:
        raise CorruptCheckpoint("its manifest stands under the wrong key")
    return manifest if job is None or manifest.job == job else None


def restore(
    store: Store,
    job: JobRef | None,
    directory: Path,
    *,
    replicas: Sequence[Store] = (),
    seeds: Sequence[Path] = (),
    position: Position | None = None,
    report: Callable[[str], None] = lambda _line: None,
    cancel: threading.Event | None = None,
    distrust: set[str] | None = None,
    threads: int = THREADS,
    progress: Progress | None = None,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> Restored | None:
    """Bring the newest valid checkpoint of the job into a fresh directory below ``directory``; None when there is none.

    ``replicas`` are asked in their order, nearest first; ``store`` comes first unless it stands among them. What does
    not match is passed over with a line to ``report``; the ids of the packs of such a checkpoint in ``store`` go into
    ``distrust``, for the saves that follow. ``seeds`` are local directories whose blobs need not be fetched.
    ``position`` restores that checkpoint or nothing.

    Raises DiskFull, Abandoned, CloudError, OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    remove_left_over(directory, re.escape(_RESTORING))
    sources = list(replicas) if any(replica is store for replica in replicas) else [store, *replicas]
    found = _look(store, sources, report)
    for candidate in sorted(set().union(*found.values()), reverse=True):
        if position is not None and candidate != position:
            continue
        refusal: CloudError | None = None
        for source in sources:
            if candidate not in found.get(source, ()):
                continue
            label = layout.manifest(candidate) if source is store else f"{source.uri}/{layout.manifest(candidate)}"
            manifest = None
            try:
                manifest = load(source, candidate, job)
                if manifest is None:
                    report(f"{label} is gone, or belongs to another job; passed over")
                    continue
                look_for_room(manifest, directory, free_bytes(directory))
                return _bring(
                    source,
                    manifest,
                    directory,
                    seeds=seeds,
                    cancel=cancel or threading.Event(),
                    threads=threads,
                    progress=progress,
                )
            except CorruptCheckpoint as error:
                if manifest is not None and distrust is not None and source is store:
                    distrust.update(manifest.packs)  # one is damaged, and nobody has looked at the others
                report(f"{label} is not usable ({error}); taking the next one")
            except CloudError as error:
                report(f"{label} cannot be read ({error})")
                refusal = error
        if refusal is not None:  # it may be whole: asking again is better than an older one
            raise refusal
    return None


def _look(store: Store, sources: Sequence[Store], report: Callable[[str], None]) -> dict[Store, set[Position]]:
    """Ask all stores at once what they have. A replica that does not answer is passed over. Raises CloudError."""

    def ask(source: Store) -> set[Position] | CloudError:
        try:
            return set(committed(source))
        except CloudError as error:
            return error

    found = {}
    with ThreadPoolExecutor(len(sources)) as pool:
        for source, answer in zip(sources, pool.map(ask, sources), strict=True):
            if isinstance(answer, CloudError):
                if source is store:
                    raise answer
                report(f"the replica {source.uri} is passed over: {answer}")
            else:
                found[source] = answer
    return found


def _bring(
    store: Store,
    manifest: Manifest,
    directory: Path,
    *,
    seeds: Sequence[Path],
    cancel: threading.Event,
    threads: int,
    progress: Progress | None,
) -> Restored:
    start = time.monotonic()
    with scratch(directory, _RESTORING) as unfinished:
        fetched = write(store, manifest, unfinished, seeds=seeds, cancel=cancel, threads=threads, progress=progress)
        final = directory / f"step-{manifest.step}-{unfinished.name.removeprefix(_RESTORING)}"
        unfinished.rename(final)
    return Restored(
        key=layout.manifest(manifest.position),
        position=manifest.position,
        directory=final,
        entry=manifest.entry,
        total_bytes=manifest.size,
        fetched_bytes=fetched,
        seconds=time.monotonic() - start,
        store_uri=store.uri,
    )


def pull(
    store: Store,
    manifest: Manifest,
    target: Path,
    *,
    seeds: Sequence[Path] = (),
    cancel: threading.Event | None = None,
    threads: int = THREADS,
    progress: Progress | None = None,
) -> Restored:
    """Bring one checkpoint to ``target``: the file or directory that was saved gets that name, once it is whole.

    Until then it lies in a hidden directory, beside or, where that cannot be, inside the target.

    Raises ConfigError when something is there, DiskFull, DamagedPack, CorruptCheckpoint, Abandoned, CloudError,
    OSError.
    """
    start = time.monotonic()
    target = target.absolute()
    base = scratch_base(target)
    remove_left_over(base, rf"{re.escape(SCRATCH)}[0-9]+-")
    refuse_taken(target)
    base.mkdir(parents=True, exist_ok=True)
    look_for_room(manifest, base, shutil.disk_usage(base).free)
    with scratch(base, f"{SCRATCH}{os.getpid()}-") as unfinished:
        fetched = write(
            store,
            manifest,
            unfinished,
            seeds=seeds,
            cancel=cancel or threading.Event(),
            threads=threads,
            progress=progress,
        )
        _hand_over(unfinished / manifest.entry, target, inside=base == target)
    return Restored(
        key=layout.manifest(manifest.position),
        position=manifest.position,
        directory=target.parent,
        entry=target.name,
        total_bytes=manifest.size,
        fetched_bytes=fetched,
        seconds=time.monotonic() - start,
        store_uri=store.uri,
    )


def refuse_taken(target: Path) -> None:
    """Raise ConfigError when something is at the target, be it a link to nowhere. An empty directory is fine."""
    if os.path.lexists(target) and not (target.is_dir() and not target.is_symlink() and not any(target.iterdir())):
        raise _taken(target)


def _taken(target: Path) -> ConfigError:
    return ConfigError(f"{target}: is there already", hint="name a directory that is empty or not there")


def scratch_base(target: Path) -> Path:
    """Return where ``pull`` gathers what it brings.

    Inside a target that cannot be replaced: a mount point, where we stand, and what lies where we may not write.
    """
    within = target.is_dir() and (
        target.is_mount() or target.samefile(Path.cwd()) or not os.access(target.parent, os.W_OK | os.X_OK)
    )
    return target if within else target.parent


def _hand_over(entry: Path, target: Path, *, inside: bool) -> None:
    """Give what was brought its final name, or its parts their final place."""
    if not entry.is_dir() or entry.is_symlink():
        if inside:
            raise ConfigError(f"{target}: is a directory, and the checkpoint is a file", hint="name a file")
        if target.is_dir():
            target.rmdir()
        try:
            os.link(entry, target, follow_symlinks=False)  # unlike a renaming it replaces nothing
        except FileExistsError:
            raise _taken(target) from None
        except OSError:  # no links on this file system
            refuse_taken(target)
            entry.rename(target)
        return
    mode = entry.stat().st_mode
    entry.chmod(0o700)  # a directory that cannot be written cannot be moved
    if inside:
        for child in entry.iterdir():
            _move(child, target / child.name)
    else:
        entry.rename(target)
    target.chmod(mode & 0o777)


def _move(entry: Path, target: Path) -> None:
    if entry.is_symlink() or not entry.is_dir():
        entry.rename(target)
        return
    mode = entry.stat().st_mode
    entry.chmod(0o700)
    entry.rename(target)
    target.chmod(mode & 0o777)


def look_for_room(manifest: Manifest, directory: Path, free: int) -> None:
    """Raise DiskFull when the disk has less room than a checkpoint needs."""
    if free < manifest.disk_bytes + RESERVE_BYTES:
        raise DiskFull(
            f"the disk of {directory} has {free // 2**20} MiB free, "
            f"the checkpoint of step {manifest.step} needs {manifest.disk_bytes // 2**20} MiB "
            f"and {RESERVE_BYTES // 2**20} MiB to spare",
            hint="free space, or take a larger disk",
        )


def write(
    store: Store,
    manifest: Manifest,
    root: Path,
    *,
    seeds: Sequence[Path] = (),
    cancel: threading.Event,
    threads: int = THREADS,
    progress: Progress | None = None,
) -> int:
    """Write everything below ``root``, which is empty and ours; return the bytes fetched.

    Links come last, so nothing is written through one. Raises as ``fetch``, and CorruptCheckpoint when two paths
    contradict each other.
    """
    try:
        for folder in manifest.folders:
            (root / folder.path).mkdir(parents=True, exist_ok=True)
        disk = _Disk(manifest, root)
        done = Seeds(seeds, manifest).take(manifest, disk.take) if seeds else set()
        total = manifest.disk_bytes
        here = sum(blob.length for _, _, blob in manifest.stored() if blob.digest in done)

        def on_bytes(count: int) -> None:
            nonlocal here
            here = min(total, here + count)
            if progress:
                progress(here, total)

        on_bytes(0)
        fetched = fetch(store, ranges(manifest, done), disk.take, threads=threads, cancel=cancel, on_bytes=on_bytes)
        for link in manifest.links:
            (root / link.path).parent.mkdir(parents=True, exist_ok=True)
            (root / link.path).symlink_to(link.target)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise CorruptCheckpoint("two of its paths contradict each other") from error
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        raise NotHereError(
            f"the disk of {root.parent} cannot hold it: {error.strerror}", hint="choose another disk, or a shorter path"
        ) from error
    for file in manifest.files:
        os.chmod(f"{root}/{file.path}", file.mode & 0o777)  # noqa: PTH101 - ten thousand files
    for folder in sorted(manifest.folders, key=lambda folder: folder.path, reverse=True):  # a parent may be read-only
        (root / folder.path).chmod(folder.mode & 0o777)
    return fetched


class _Disk:
    """Writes bytes into files below a root. At most one file a thread is open."""

    def __init__(self, manifest: Manifest, root: Path) -> None:
        """Create every file that is more than one blob, at its full size: what nobody writes is a hole."""
        self._root = os.fspath(root)
        self._created: set[str] = set()
        folders = {folder.path for folder in manifest.folders}
        for file in manifest.files:
            parent = file.path.rpartition("/")[0]
            if parent and parent not in folders:
                (root / parent).mkdir(parents=True, exist_ok=True)
                folders.add(parent)
            if len(file.blobs) != 1 or not file.blobs[0].pack:
                descriptor = self._open(file, os.O_CREAT | os.O_EXCL)
                try:
                    os.truncate(descriptor, file.size)
                finally:
                    os.close(descriptor)

    def take(self, file: File, offset: int, data: memoryview) -> None:
        """Write bytes at ``offset``. A small file comes into being by its first ones. Raises OSError."""
        descriptor = self._open(file, 0 if file.path in self._created else os.O_CREAT | os.O_EXCL)
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], offset + written)
        finally:
            os.close(descriptor)

    def _open(self, file: File, flags: int) -> int:
        flags |= os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{self._root}/{file.path}", flags, 0o600)
        self._created.add(file.path)
        return descriptor
