"""The cache of data on this machine's disk: one folder an entry, with an index that proves what is in it.

Files stand under the hash of their name; the command sees hard links to them, under their names, in a folder of its
own (``Links``). So it may add, remove and replace what it likes there. What it changes in place is noticed at the next
start, by time and size, and fetched again. After another boot of the machine every file is hashed anew: what a power
cut left half written has the right size.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import blake3

from provisioner.checkpoint import scratch
from provisioner.errors import Abandoned

LINKS = ".links-"
_LOOK_S = 0.3


@dataclass(frozen=True, slots=True)
class Kept:
    """What the index says of one file. ``mtime_ns`` and ``inode`` are as it was left; ``digest`` is its blake3."""

    name: str
    size: int
    etag: str
    digest: str
    mtime_ns: int
    inode: int
    boot: str
    sha256: str = ""
    """Where somebody has asked for it."""
    executable: bool = False

    def line(self) -> bytes:
        """Return the line."""
        return (json.dumps({name: getattr(self, name) for name in _FIELDS}) + "\n").encode()


_FIELDS = tuple(field.name for field in fields(Kept))


def boot_id() -> str:
    """Return what is new at each boot of the machine; nothing where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def digest_of(path: Path, *, threads: int = 1) -> str:
    """Return the blake3 of a file, in hex. Raises OSError."""
    return blake3.blake3(max_threads=threads).update_mmap(path).hexdigest()


class Folder:
    """One entry of the cache, in use until this process ends or ``close``."""

    def __init__(self, path: Path) -> None:
        """Open it, or make it. Raises OSError."""
        self.path = path
        self.boot = boot_id()
        self._lock = threading.Lock()
        self._held = _hold(path)
        self._append: int | None = None
        self._made: set[Path] = set()
        for name in ("files", "parts"):
            (path / name).mkdir(exist_ok=True, mode=0o700)
        self.index = _read(path / "index.jsonl")
        self.tree = _read(path / "tree.jsonl")
        """What an archive has given: ``place_in_tree`` names the files."""
        os.utime(path)

    def place(self, name: str) -> Path:
        """Return where a file stands."""
        return self._below("files", name)

    def place_in_tree(self, name: str) -> Path:
        """Return where a file out of the archive stands."""
        return self._below("tree", name)

    def part(self, name: str) -> Path:
        """Return where a file comes in."""
        return self.path / "parts" / _hashed(name)

    def add(self, name: str, draft: Path, *, etag: str, sha256: str, digest: str = "") -> None:
        """Take a finished file in. ``digest`` is its blake3, where it is known already. Raises OSError."""
        digest = digest or digest_of(draft, threads=1 if draft.stat().st_size < 2**26 else blake3.blake3.AUTO)
        place = self.place(name)
        if place.parent not in self._made:
            place.parent.mkdir(exist_ok=True, mode=0o700)
            self._made.add(place.parent)
        draft.chmod(0o444)
        draft.replace(place)
        self.write(kept_as(place, name, digest, self.boot, etag=etag, sha256=sha256))

    def write(self, kept: Kept) -> None:
        """Add a line to the index. Raises OSError."""
        line = kept.line()
        with self._lock:
            self.index[kept.name] = kept
            if os.write(self._appended(), line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def write_tree(self, kept: Iterable[Kept]) -> None:
        """Say what the whole archive has given. Raises OSError."""
        self.tree = {one.name: one for one in kept}
        _rewrite(self.path / "tree.jsonl", self.tree.values())

    def is_untouched(self, kept: Kept, place: Path) -> bool:
        """Say whether time and size of a file are as it was left in this boot. Reads nothing. Never raises."""
        try:
            now = os.lstat(place)
        except OSError:
            return False
        same = (now.st_size, now.st_mtime_ns, now.st_ino) == (kept.size, kept.mtime_ns, kept.inode)
        return same and kept.boot != "" and kept.boot == self.boot

    def proves(self, kept: Kept, place: Path) -> bool:
        """Say whether a file holds what was left in it. Reads all of it. Never raises."""
        try:
            return place.lstat().st_size == kept.size and digest_of(place) == kept.digest
        except (OSError, ValueError):
            return False

    def renew(self, good: Iterable[str]) -> None:
        """Write the index anew with what was found good, as it is now. Everything else goes. Raises OSError."""
        self.index = {name: self._now(self.index[name], self.place(name)) for name in good}
        self._end_append()
        _rewrite(self.path / "index.jsonl", self.index.values())
        wanted = {self.place(name) for name in self.index}
        for path in (self.path / "files").glob("*/*"):
            if path not in wanted:
                path.unlink()

    def renew_tree(self) -> None:
        """Write down of the files of an archive how they are now. Raises OSError."""
        self.write_tree([self._now(kept, self.place_in_tree(kept.name)) for kept in self.tree.values()])

    def forget_tree(self) -> None:
        """Remove what an archive has given. Raises OSError."""
        self.tree = {}
        (self.path / "tree.jsonl").unlink(missing_ok=True)
        shutil.rmtree(self.path / "tree", ignore_errors=True)

    @contextlib.contextmanager
    def alone(self, cancel: threading.Event) -> Iterator[None]:
        """Be the only one that fetches into it. Raises Abandoned, OSError."""
        descriptor = os.open(self.path / "fetch.lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _locked(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                if cancel.wait(_LOOK_S):
                    raise Abandoned("told to stop while another job fetched the same data")
            self.index, self.tree = _read(self.path / "index.jsonl"), _read(self.path / "tree.jsonl")
            yield
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Let it go: it may be removed from now on."""
        self._end_append()
        os.close(self._held)

    def _appended(self) -> int:
        if self._append is None:
            how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._append = os.open(self.path / "index.jsonl", how, 0o600)
        return self._append

    def _end_append(self) -> None:
        if self._append is not None:
            os.close(self._append)
        self._append = None

    def _now(self, kept: Kept, place: Path) -> Kept:
        return kept_as(
            place, kept.name, kept.digest, self.boot, etag=kept.etag, sha256=kept.sha256, executable=kept.executable
        )

    def _below(self, folder: str, name: str) -> Path:
        hashed = _hashed(name)
        return Path(f"{self.path}/{folder}/{hashed[:2]}/{hashed}")  # one step: a list may have 200,000 names


def kept_as(
    place: Path, name: str, digest: str, boot: str, *, etag: str = "", sha256: str = "", executable: bool = False
) -> Kept:
    """Return the line of the index for a file as it is now. Raises OSError."""
    now = place.lstat()
    return Kept(name, now.st_size, etag, digest, now.st_mtime_ns, now.st_ino, boot, sha256, executable)


class Cache:
    """All entries on this machine, below one folder (0700)."""

    def __init__(self, root: Path) -> None:
        """Make the folder. Raises OSError."""
        self.root = root
        for path in (root, root / "entries"):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch.remove_left_over(root, LINKS.replace(".", r"\."))

    def open(self, key: str) -> Folder:
        """Open an entry. Raises OSError."""
        return Folder(self.root / "entries" / key)

    def used_bytes(self) -> int:
        """Return what all entries take on the disk."""
        return sum(_bytes_of(path) for path in self._entries())

    def make_room(self, wanted: int, keep: Iterable[str]) -> int:
        """Remove entries, the least recently used first, until ``wanted`` bytes are freed; return the bytes freed.

        What a process uses, and what ``keep`` names, stays.
        """
        freed, kept = 0, set(keep)
        for path in sorted(self._entries(), key=_used):
            if freed >= wanted:
                break
            if path.name not in kept:
                freed += _removed(path)
        return freed

    def _entries(self) -> list[Path]:
        return [path for path in (self.root / "entries").iterdir() if path.is_dir()]


def _hashed(name: str) -> str:
    return blake3.blake3(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _bytes_of(path: Path) -> int:
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(f"{folder}/{name}").st_blocks * 512
    return total


def _removed(path: Path) -> int:
    """Remove an entry that nobody uses; return the bytes that this gives."""
    try:
        descriptor = os.open(path / "lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return 0
    try:
        if not _locked(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return 0
        size = _bytes_of(path)
        shutil.rmtree(path, ignore_errors=True)
        return size
    finally:
        os.close(descriptor)


def _hold(path: Path) -> int:
    """Make and lock an entry against removal. Somebody may be removing it at this moment: then it is made anew."""
    while True:
        path.mkdir(exist_ok=True, mode=0o700)
        try:
            descriptor = os.open(path / "lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), (path / "lock").stat()):
                return descriptor
        os.close(descriptor)


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> dict[str, Kept]:
    """Read an index. A line that was cut off, or that another release wrote, counts as not there."""
    found: dict[str, Kept] = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return found
    for line in lines:
        try:
            kept = Kept(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[kept.name] = kept
    return found


def _rewrite(path: Path, kept: Iterable[Kept]) -> None:
    draft = path.with_suffix(".tmp")
    with draft.open("wb") as file:
        file.writelines(one.line() for one in kept)
    draft.replace(path)
