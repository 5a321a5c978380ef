"""One entry of the data on its way: what is here already, what is missing, each file by one request or several."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import blake3

from provisioner.errors import Abandoned, DiskFull, JobFailed
from provisioner.node import machine
from provisioner.node.data_cache import Folder, Kept
from provisioner.node.data_links import Link, NoRanges, Reader
from provisioner.node.data_list import Entry, File
from provisioner.node.data_parts import NOTE_BYTES, Part
from provisioner.node.data_unpack import unpack

THREADS = 16
RESERVE = 10
"""One part in so many of the disk is left to checkpoints."""
MOST_RESERVED_BYTES = 20 * 10**9
LOOK_BYTES = 4 * 1024 * 1024
"""While an archive is unpacked, the disk is looked at after so many bytes."""


class Desk:
    """What all entries share: the reader, the counters, the first failure, the disk. ``root`` is the cache's."""

    def __init__(self, root: Path) -> None:
        """Count nothing yet."""
        self.root = root
        self.stop = threading.Event()
        """Cuts everything short: set from outside, and by the first failure."""
        self.reader = Reader(self.stop)
        self.error: BaseException | None = None
        self.of = self.bytes = self.fetched = self.files = 0
        """Bytes that are wanted, bytes that are here, bytes of it that were fetched, files that the command sees."""
        self._lock = threading.Lock()

    def failed(self, error: BaseException) -> None:
        """Take note of what went wrong first, at once: requests that are under way may take long to end."""
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            error = self.full("data: there is no room for all of it")
        with self._lock:
            self.error = self.error or error
        self.stop.set()

    def came(self, count: int, *, fetched: bool = True) -> None:
        """Count bytes."""
        with self._lock:
            self.bytes += count
            self.fetched += count if fetched else 0

    def check(self) -> None:
        """Raise Abandoned when it is to stop, DiskFull when checkpoints would have no room any more."""
        self.go_on()
        usage = shutil.disk_usage(self.root)
        if usage.free < reserve(usage.total):
            raise self.full("data: more is to come")

    def go_on(self) -> None:
        """Raise Abandoned when it is to stop."""
        if self.stop.is_set():
            raise Abandoned("told to stop while the data came")

    def full(self, what: str) -> DiskFull:
        """Return the error that names the disk and the sizes."""
        usage = shutil.disk_usage(self.root)
        return DiskFull(
            f"{what}, and the disk {machine.mount_of(self.root)} has {mib(usage.free)} free, of which "
            f"{mib(reserve(usage.total))} are for checkpoints",
            hint="take machines with a larger disk (disk_gb), or bring less",
        )


class Work:
    """One entry on its way."""

    def __init__(self, entry: Entry, folder: Folder, desk: Desk, pool: ThreadPoolExecutor) -> None:
        """Look at nothing yet."""
        self.entry = entry
        self.folder = folder
        self.missing: list[File] = []
        self.unpacked = False
        """The archive has been unpacked, and what it has given is whole."""
        self.damaged = 0
        """Files of the cache that are not what was put there."""
        self.size = sum(file.size or 0 for file in entry.files)
        self._desk = desk
        self._pool = pool
        self._proved: set[Kept] = set()
        """What has been looked at: after a boot that means reading it."""

    def look(self) -> None:
        """Find out what is here already. Raises OSError, Abandoned."""
        self.missing, self.damaged = [], 0
        self.unpacked = self.entry.unpack and self._has_tree()
        if self.unpacked:
            return
        found = {
            file.name: kept
            for file in self.entry.files
            if (kept := self.folder.index.get(file.name)) is not None and self._is_of(file, kept)
        }
        good = self._good(found.values(), self.folder.place)
        self.damaged = len(found) - len(good)
        self.missing = [file for file in self.entry.files if file.name not in good]

    def to_come(self) -> int:
        """Return the bytes that the disk must have room for."""
        if self.unpacked:
            return 0
        names = {file.name for file in self.entry.files} - {file.name for file in self.missing}
        goes = sum(kept.size for name, kept in self.folder.index.items() if name not in names)
        goes += sum(kept.size for kept in self.folder.tree.values())
        comes = sum(self._still(file) for file in self.missing) + (self.size if self.entry.unpack else 0)
        return max(0, comes - goes)

    def bring(self, to: Path) -> None:
        """Fetch what is missing, unpack, and show the command its files in ``to``, which is made.

        Raises as ``Data.wait``.
        """
        with self.folder.alone(self._desk.stop):
            self.look()  # another job may have fetched it meanwhile
            self._desk.came(self.size - sum(file.size or 0 for file in self.missing), fetched=False)
            if self.unpacked:
                self.folder.renew_tree()
            else:
                gone = {file.name for file in self.missing}
                self.folder.forget_tree()
                self.folder.renew([file.name for file in self.entry.files if file.name not in gone])
                self._fetch()
                if self.entry.unpack:
                    self._unpack()
            self._link(to)

    def _link(self, to: Path) -> None:
        place = self.folder.place_in_tree if self.entry.unpack else self.folder.place
        kept = self.folder.tree if self.entry.unpack else self.folder.index
        to.mkdir()
        made = {to}
        for name in kept:
            path = to / name
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            os.link(place(name), path)
        self._desk.files += len(kept)

    def _good(self, kept: Iterable[Kept], place: Callable[[str], Path]) -> set[str]:
        """Return the names of the files that are what was put there. Raises Abandoned."""
        good, doubtful = set(), []
        for one in kept:
            if one in self._proved or self.folder.is_untouched(one, place(one.name)):
                good.add(one.name)
            else:
                doubtful.append(one)
        proofs = self._pool.map(lambda one: self.folder.proves(one, place(one.name)), doubtful)
        for one, proved in zip(doubtful, proofs, strict=True):
            if proved:
                good.add(one.name)
                self._proved.add(one)
            self._desk.go_on()
        return good

    def _is_of(self, file: File, kept: Kept) -> bool:
        wanted = self.entry.sha256
        if wanted and kept.sha256:
            return kept.sha256 == wanted
        return not wanted and kept.etag == file.etag and file.size in {None, kept.size}

    def _has_tree(self) -> bool:
        """Say whether what the archive has given is whole."""
        if not self.folder.tree:
            return False
        (file,) = self.entry.files
        kept = self.folder.tree.values()
        if next(iter(kept)).etag != self.state(file):
            return False
        self.damaged = len(kept) - len(self._good(kept, self.folder.place_in_tree))
        return not self.damaged

    def state(self, file: File) -> str:
        """Return what tells one state of a file from the next."""
        return self.entry.sha256 or f"{file.size} {file.etag}"

    def _still(self, file: File) -> int:
        """Return the bytes that a file will take beyond what lies here of it."""
        try:
            here = self.folder.part(file.name).stat().st_blocks * 512
        except OSError:
            here = 0
        return max(0, (file.size or 0) - here)

    def _fetch(self) -> None:
        """Fetch, file after file in the order of the list, as many requests at once as there are threads."""
        pending: set[Future[None]] = set()
        for file in self.missing:
            for call in _Coming(self, self._desk, file).calls():
                pending.add(self._pool.submit(self._unless_stopped, call))
                if len(pending) > 2 * THREADS:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    _raise_of(done)
            if self._desk.stop.is_set():
                break
        _raise_of(pending)
        self._desk.go_on()
        wanted = {self.folder.part(file.name).name for file in self.missing}
        for path in (self.folder.path / "parts").iterdir():  # of objects that have changed or gone since
            if path.name.removesuffix(".map") not in wanted:
                path.unlink()

    def _unless_stopped(self, call: Callable[[], None]) -> None:
        if self._desk.stop.is_set():
            return
        try:
            call()
        except BaseException as error:
            self._desk.failed(error)
            raise

    def _unpack(self) -> None:
        (file,) = self.entry.files
        looked = 0

        def on_bytes(count: int) -> None:
            nonlocal looked
            looked += count
            if looked >= LOOK_BYTES:
                looked = 0
                self._desk.check()

        self._desk.check()
        unpack(self.folder.place(file.name), self.folder, f"data: {self.entry.source}", on_bytes, self.state(file))
        self.folder.renew(())


class _Coming:
    """One file on its way, by one request or several."""

    def __init__(self, work: Work, desk: Desk, file: File) -> None:
        self._work = work
        self._file = file
        self._lock = threading.Lock()
        self._part: Part | None = None
        self._whole = False
        """The server gives no parts: one request brings all."""
        self._finished = False
        entry = work.entry
        self._link = Link(entry.called(file), file.url, file.size, file.etag if entry.etags else "")
        self._desk = desk

    def calls(self) -> list[Callable[[], None]]:
        """Return what brings it. Raises OSError."""
        if self._file.size is None:
            return [self._without_size]
        if self._file.size <= NOTE_BYTES:
            return [self._small]
        part = self._open(self._file.size)
        self._desk.came(part.there, fetched=False)
        if not self._work.entry.ranges and not part.is_whole():
            return [self._in_one]
        spans = part.segments()
        return [lambda span=span: self._bring(*span) for span in spans] or [self._finish]  # type: ignore[misc]

    def _open(self, size: int) -> Part:
        work = self._work
        self._part = Part(work.folder.part(self._file.name), size, work.state(self._file), work.folder.boot)
        return self._part

    def _bring(self, start: int, end: int) -> None:
        if self._whole:
            return
        try:
            self._read(start, end)
        except NoRanges:
            with self._lock:
                first, self._whole = not self._whole, True
            if first:
                self._read(0, self._file.size)
        self._finish()

    def _in_one(self) -> None:
        self._read(0, self._file.size)
        self._finish()

    def _read(self, start: int, end: int | None) -> None:
        part = self._part
        assert part is not None  # noqa: S101 - `calls` has opened it
        writer = part.writer(start)

        def take(place: int, data: memoryview) -> None:
            writer.take(place, data)
            self._desk.came(len(data))

        try:
            self._desk.reader.read(self._link, start, end, take)
        finally:
            writer.note()

    def _small(self) -> None:
        """Fetch a file that is not worth taking up again in its middle."""
        data = bytearray(self._file.size or 0)

        def take(place: int, piece: memoryview) -> None:
            data[place : place + len(piece)] = piece
            self._desk.came(len(piece))

        self._desk.reader.read(self._link, 0, len(data), take)
        path = self._work.folder.part(self._file.name)
        path.write_bytes(data)
        self._accept(path, digest=blake3.blake3(data).hexdigest())

    def _without_size(self) -> None:
        """Fetch a file whose server does not tell its size: from its beginning, and not in parts."""
        path = self._work.folder.part(self._file.name)
        with path.open("wb") as file:

            def take(place: int, data: memoryview) -> None:
                if place == 0:
                    file.seek(0)
                    file.truncate()
                file.write(data)
                self._desk.came(len(data))

            self._desk.reader.read(self._link, 0, None, take)
        self._accept(path)

    def _finish(self) -> None:
        """Verify a file when it is whole, and take it into the cache. Raises JobFailed, OSError."""
        part = self._part
        assert part is not None  # noqa: S101 - `calls` has opened it
        with self._lock:
            if self._finished or not part.is_whole():
                return
            self._finished = True
        part.close()
        self._accept(part.path)
        part.forget_map()

    def _accept(self, path: Path, *, digest: str = "") -> None:
        entry, folder = self._work.entry, self._work.folder
        found = ""
        if entry.sha256:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != entry.sha256:
                if self._part is not None:
                    self._part.close(discard=True)
                path.unlink(missing_ok=True)
                raise JobFailed(f"data: {self._link.name}: its SHA-256 is {found}, and {entry.sha256} was wanted")
        folder.add(self._file.name, path, etag=self._file.etag, sha256=found, digest=digest)


def _raise_of(done: Iterable[Future[None]]) -> None:
    for one in done:
        one.result()


def reserve(total: int) -> int:
    """Return what of a disk is left to checkpoints, in bytes."""
    return min(total // RESERVE, MOST_RESERVED_BYTES)


def mib(count: int) -> str:
    """Return a size for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
