"""Data on this machine's disk before the command starts: fetched beside the restore, verified, kept for the next."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import blake3

from provisioner.checkpoint.scratch import scratch
from provisioner.checkpoint.store import Store
from provisioner.errors import Abandoned, DiskFull, JobFailed
from provisioner.node import data_list, machine
from provisioner.node.arrival import Patiently
from provisioner.node.bootstrap import DataOrder
from provisioner.node.data_cache import LINKS, Cache, Folder
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
LIST = "data.json.zst"


@dataclass
class _Progress:
    """Bytes of what is wanted, and of that what is here."""

    of: int = 0
    bytes: int = 0
    fetched: int = 0
    files: int = 0


class Data:
    """Brings the data. ``start`` returns at once; ``wait`` gives the folder that the command is shown.

    ``note`` is as in ``arrival``; ``cancel`` cuts it short. ``keep_in`` is where this machine keeps the list.
    """

    def __init__(
        self,
        store: Store,
        order: DataOrder | None,
        cache: Path,
        keep_in: Path,
        *,
        patiently: Patiently,
        note: Callable[..., object],
        cancel: threading.Event,
    ) -> None:
        """Fetch nothing yet. ``order`` None: the job has no data."""
        self._store = store
        self._order = order
        self._root = cache
        self._keep = keep_in / LIST
        self._patiently = patiently
        self._note = note
        self._cancel = cancel
        self._stop = threading.Event()
        """Set with ``cancel``, and by the first failure: the rest need not come."""
        self._reader = Reader(self._stop)
        self._progress = _Progress()
        self._lock = threading.Lock()
        self._found: Path | None = None
        self._error: BaseException | None = None
        self._held = ExitStack()
        """Locks and links, for as long as this process lives."""
        self._thread = threading.Thread(target=self._run, name="data", daemon=True)

    def start(self) -> None:
        """Begin, if there is anything to bring."""
        if self._order is not None:
            self._thread.start()

    def wait(self) -> Path | None:
        """Wait until all is here, and return its folder; None where the job has no data.

        Raises JobFailed for data that no machine can use, DiskFull, CloudError, OSError, Abandoned.
        """
        while self._order is not None and self._thread.is_alive():
            self._thread.join(0.2)
            if self._cancel.is_set():
                self._stop.set()
                raise Abandoned("told to stop while the data came")
            if self._error is not None:
                break
        if self._error is not None:
            raise self._error
        return self._found

    def progress(self) -> dict[str, int] | None:
        """Return bytes that are here and bytes that are wanted, for the heartbeat."""
        here = self._progress
        return {"bytes": here.bytes, "of": max(here.of, here.bytes)} if self._order is not None else None

    def close(self) -> None:
        """Let the next node of this machine have the cache, and remove the command's links."""
        self._held.close()

    def _run(self) -> None:
        try:
            self._found = self._bring()
        except BaseException as error:  # noqa: BLE001 - `wait` raises it in the main thread
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Take note of what went wrong first, at once: requests that are under way may take long to end."""
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            error = self.full("data: there is no room for all of it")
        with self._lock:
            self._error = self._error or error
        self._stop.set()

    def _bring(self) -> Path:
        assert self._order is not None  # noqa: S101 - `start` has looked
        order, began = self._order, time.monotonic()
        entries = self._patiently(lambda: data_list.read(self._store, order.key, self._keep))
        cache = Cache(self._root)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="data") as pool:
            works = []
            for entry in entries:
                folder = cache.open(entry.key)
                self._held.callback(folder.close)
                works.append(_Work(entry, folder, self, pool))
            self._progress.of = sum(work.size for work in works)
            for work in works:
                work.look()
            self._say_begin(works)
            self._make_room(cache, works)
            for work in works:
                work.bring()
            self._reader.close()
            links = self._held.enter_context(scratch(self._root, LINKS))
            for work in works:
                work.link(links / work.entry.to)
        took, here = time.monotonic() - began, self._progress
        self._note(
            "data",
            f"data: {here.files} files, {_mib(here.bytes)}, are here after {took:.1f} s ({_mib(here.fetched)} of it "
            f"fetched)",
            bytes=here.bytes,
            fetched_bytes=here.fetched,
            seconds=round(took, 3),
        )
        return links

    def _say_begin(self, works: Iterable[_Work]) -> None:
        for work in works:
            missing = sum(file.size or 0 for file in work.missing)
            self._note(
                "data",
                f"data: {work.entry.to}: {len(work.missing)} of {len(work.entry.files)} files ({_mib(missing)}) are to "
                f"come from {work.entry.source}"
                + (f"; {work.damaged} were changed or damaged in the cache" if work.damaged else ""),
                files=len(work.missing),
                bytes=missing,
            )

    def _make_room(self, cache: Cache, works: list[_Work]) -> None:
        """Look before anything is fetched. Raises DiskFull, OSError."""
        assert self._order is not None  # noqa: S101 - as in `_bring`
        wanted = sum(work.to_come() for work in works)
        if not wanted:
            return
        ours = [work.entry.key for work in works]
        usage = shutil.disk_usage(self._root)
        short = wanted - (usage.free - reserve(usage.total))
        limit = self._order.cache_bytes
        if limit is not None:
            short = max(short, cache.used_bytes() + wanted - limit)
        if short <= 0:
            return
        freed = cache.make_room(short, ours)
        if freed:
            self._note("data", f"data: {_mib(freed)} that other jobs left in the cache are removed", bytes=freed)
        if freed >= short:
            return
        if limit is not None and cache.used_bytes() + wanted > limit:
            words = f"data: {_mib(wanted)} are to come, and policy.data_cache_gb leaves {_mib(limit)} on a machine"
            raise DiskFull(words, hint="raise policy.data_cache_gb, or bring less")
        raise self.full(f"data: {_mib(wanted)} are to come")

    def full(self, what: str) -> DiskFull:
        """Return the error that names the disk and the sizes."""
        usage = shutil.disk_usage(self._root)
        return DiskFull(
            f"{what}, and the disk {machine.mount_of(self._root)} has {_mib(usage.free)} free, of which "
            f"{_mib(reserve(usage.total))} are for checkpoints",
            hint="take machines with a larger disk (disk_gb), or bring less",
        )

    def check(self) -> None:
        """Raise Abandoned when it is to stop, DiskFull when checkpoints would have no room any more."""
        if self._stop.is_set():
            raise Abandoned("told to stop while the data came")
        usage = shutil.disk_usage(self._root)
        if usage.free < reserve(usage.total):
            raise self.full("data: more is to come")

    def came(self, count: int, *, fetched: bool = True) -> None:
        """Count bytes."""
        with self._lock:
            self._progress.bytes += count
            self._progress.fetched += count if fetched else 0

    def counted(self, files: int) -> None:
        """Count files of the command."""
        self._progress.files += files

    @property
    def reader(self) -> Reader:
        """What reads the links."""
        return self._reader

    @property
    def stop(self) -> threading.Event:
        """What cuts it short."""
        return self._stop


class _Work:
    """One entry on its way."""

    def __init__(self, entry: Entry, folder: Folder, data: Data, pool: ThreadPoolExecutor) -> None:
        self.entry = entry
        self.folder = folder
        self.missing: list[File] = []
        self.unpacked = False
        """The archive has been unpacked, and what it has given is whole."""
        self.damaged = 0
        """Files of the cache that are not what was put there."""
        self.size = sum(file.size or 0 for file in entry.files)
        self._data = data
        self._pool = pool

    def look(self) -> None:
        """Find out what is here already. Raises OSError, Abandoned."""
        self.missing, self.damaged = [], 0
        self.unpacked = self.entry.unpack and self._has_tree()
        if self.unpacked:
            return
        known = {file.name: self.folder.index.get(file.name) for file in self.entry.files}
        asked = [file for file in self.entry.files if (kept := known[file.name]) and self._is_of(file, kept.size)]
        proofs = self._pool.map(lambda file: self.folder.proves(self.folder.index[file.name], self._place(file)), asked)
        good = set()
        for file, proved in zip(asked, proofs, strict=True):
            self.damaged += not proved
            if proved:
                good.add(file.name)
            if self._data.stop.is_set():
                raise Abandoned("told to stop while the data was looked at")
        self.missing = [file for file in self.entry.files if file.name not in good]

    def to_come(self) -> int:
        """Return the bytes that the disk must have room for."""
        if self.entry.unpack:
            archive = sum(self._still(file) for file in self.missing)
            return 0 if self.unpacked else archive + self.size
        return sum(self._still(file) for file in self.missing)

    def bring(self) -> None:
        """Fetch what is missing, and unpack. Raises as ``Data.wait``."""
        with self.folder.alone(self._data.stop):
            self.look()  # another job may have fetched it meanwhile
            self._data.came(self.size - sum(file.size or 0 for file in self.missing), fetched=False)
            if self.unpacked:
                self.folder.renew_tree()
                return
            gone = {file.name for file in self.missing}
            self.folder.renew([file.name for file in self.entry.files if file.name not in gone])
            self._fetch()
            if self.entry.unpack:
                self._unpack()

    def link(self, to: Path) -> None:
        """Show the command its files. Raises OSError."""
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
        self._data.counted(len(kept))

    def _place(self, file: File) -> Path:
        return self.folder.place(file.name)

    def _is_of(self, file: File, size: int) -> bool:
        kept = self.folder.index[file.name]
        wanted = self.entry.sha256
        if wanted and kept.sha256:
            return kept.sha256 == wanted
        return not wanted and kept.etag == file.etag and file.size in {None, size}

    def _has_tree(self) -> bool:
        """Say whether what the archive has given is whole."""
        if not self.folder.tree:
            return False
        (file,) = self.entry.files
        first = next(iter(self.folder.tree.values()))
        if first.etag == self._state(file):
            kept = self.folder.tree.values()
            proofs = self._pool.map(lambda one: self.folder.proves(one, self.folder.place_in_tree(one.name)), kept)
            if all(proofs):
                return True
            self.damaged = 1
        return False

    def _state(self, file: File) -> str:
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
            for call in _Coming(self, file).calls():
                pending.add(self._pool.submit(self._unless_stopped, call))
                if len(pending) > 2 * THREADS:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    _raise_of(done)
            if self._data.stop.is_set():
                break
        _raise_of(pending)
        if self._data.stop.is_set():
            raise Abandoned("told to stop while the data came")
        wanted = {self.folder.part(file.name).name for file in self.missing}
        for path in (self.folder.path / "parts").iterdir():  # of objects that have changed or gone since
            if path.name.removesuffix(".map") not in wanted:
                path.unlink()

    def _unless_stopped(self, call: Callable[[], None]) -> None:
        if self._data.stop.is_set():
            return
        try:
            call()
        except BaseException as error:
            self._data.failed(error)
            raise

    def _unpack(self) -> None:
        (file,) = self.entry.files
        looked = 0

        def on_bytes(count: int) -> None:
            nonlocal looked
            looked += count
            if looked >= LOOK_BYTES:
                looked = 0
                self._data.check()

        self._data.check()
        unpack(self._place(file), self.folder, f"data: {self.entry.source}", on_bytes, self._state(file))
        self.folder.renew(())


class _Coming:
    """One file on its way, by one request or several."""

    def __init__(self, work: _Work, file: File) -> None:
        self._work = work
        self._file = file
        self._lock = threading.Lock()
        self._part: Part | None = None
        self._whole = False
        """The server gives no parts: one request brings all."""
        self._finished = False
        entry = work.entry
        self._link = Link(entry.called(file), file.url, file.size, file.etag if entry.etags else "")
        self._data = work._data  # noqa: SLF001 - two halves of one thing

    def calls(self) -> list[Callable[[], None]]:
        """Return what brings it. Raises OSError."""
        if self._file.size is None:
            return [self._without_size]
        if self._file.size <= NOTE_BYTES:
            return [self._small]
        part = self._open(self._file.size)
        self._data.came(part.there, fetched=False)
        if not self._work.entry.ranges and not part.is_whole():
            return [self._in_one]
        spans = part.segments()
        return [lambda span=span: self._bring(*span) for span in spans] or [self._finish]  # type: ignore[misc]

    def _open(self, size: int) -> Part:
        work = self._work
        self._part = Part(work.folder.part(self._file.name), size, work._state(self._file), work.folder.boot)  # noqa: SLF001
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
            self._data.came(len(data))

        try:
            self._data.reader.read(self._link, start, end, take)
        finally:
            writer.note()

    def _small(self) -> None:
        """Fetch a file that is not worth taking up again in its middle."""
        data = bytearray(self._file.size or 0)

        def take(place: int, piece: memoryview) -> None:
            data[place : place + len(piece)] = piece
            self._data.came(len(piece))

        self._data.reader.read(self._link, 0, len(data), take)
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
                self._data.came(len(data))

            self._data.reader.read(self._link, 0, None, take)
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


def _mib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
