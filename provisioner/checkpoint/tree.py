"""What a checkpoint looks like on the disk: its files, folders and links, and the stretches that files are cut into."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from provisioner.checkpoint.manifest import Folder, Link
from provisioner.errors import Unstable

_BLOBS_PER_FILE = 1024
_SPANS_PER_SLICE = 512


@dataclass(frozen=True, slots=True)
class Sizes:
    """How files are cut, in bytes, powers of two: the smallest blob; what is read at once, and what a pack holds.

    Checkpoints of any sizes can be restored; blobs that were cut in another way are not found again.
    """

    blob: int = 1024 * 1024
    pack: int = 8 * 1024 * 1024
    """Also the largest blob."""


STANDARD = Sizes()


@dataclass(frozen=True, slots=True)
class Source:
    """A regular file as it was found; ``name`` is its path below the checkpoint's root, ``path`` the one to open."""

    path: str
    name: str
    info: os.stat_result


@dataclass
class Tree:
    """What an entry holds, in a fixed order."""

    files: list[Source] = field(default_factory=list)
    folders: list[Folder] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the bytes of all files together."""
        return sum(source.info.st_size for source in self.files)

    def shape(self) -> tuple[object, ...]:
        """Return names, sizes, inodes and times of change; not times of access, which reading moves."""
        return tuple((file.name, identity(file.info)) for file in self.files), tuple(self.folders), tuple(self.links)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a file: its number in the tree, where it begins, its bytes. A hole is not read."""

    file: int
    offset: int
    length: int
    hole: bool = False


def identity(info: os.stat_result) -> tuple[int, ...]:
    """Return what tells a changed file from an unchanged one."""
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode


def scan(entry: Path) -> Tree:
    """Walk an entry. Raises Unstable when it vanishes, OSError. Sockets, pipes and devices are left out."""
    found = Tree()
    pending = [(os.fspath(entry), entry.name)]
    try:
        while pending:
            path, name = pending.pop()
            info = os.lstat(path)
            if stat.S_ISREG(info.st_mode):
                found.files.append(Source(path, name, info))
            elif stat.S_ISLNK(info.st_mode):
                found.links.append(Link(name, os.readlink(path)))  # noqa: PTH115 - the target as it stands
            elif stat.S_ISDIR(info.st_mode):
                found.folders.append(Folder(name, stat.S_IMODE(info.st_mode) & 0o777))
                children = sorted(os.listdir(path), reverse=True)  # noqa: PTH208 - names are what is wanted
                pending += [(f"{path}/{child}", f"{name}/{child}") for child in children]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unstable(f"{entry}: vanished while it was read") from error
    return found


def blob_bytes(size: int, sizes: Sizes = STANDARD) -> int:
    """Return how long the blobs of a file are: a power of two, 1 MiB up to files of 1 GiB, at most 8 MiB.

    Smaller blobs spare more bytes when a file changes in places; larger ones keep the manifest of a large file short.
    """
    blob = sizes.blob
    while blob < sizes.pack and blob * _BLOBS_PER_FILE < size:
        blob *= 2
    return blob


def slices(tree: Tree, sizes: Sizes = STANDARD) -> Iterator[list[Span]]:
    """Yield what is read at once: stretches of one file or several, a pack together at most, holes by themselves.

    Raises Unstable when a file vanishes.
    """
    group: list[Span] = []
    room = sizes.pack
    for number, source in enumerate(tree.files):
        for span in _spans(number, source, sizes):
            if group and (span.hole or span.length > room or len(group) == _SPANS_PER_SLICE):
                yield group
                group, room = [], sizes.pack
            if span.hole:
                yield [span]
                continue
            group.append(span)
            room -= span.length
    if group:
        yield group


def _spans(number: int, source: Source, sizes: Sizes) -> Iterator[Span]:
    size = source.info.st_size
    if source.info.st_blocks * 512 >= size or size < sizes.blob:
        yield from _cut(number, 0, size, sizes.pack)
        return
    blob = blob_bytes(size, sizes)
    at = 0
    with open_file(source) as descriptor:
        while at < size:
            start, end = _data(descriptor.fileno(), at, size)
            start = max(at, start - start % blob)  # a blob that is in part a hole is read whole
            end = min(size, -(-end // blob) * blob)
            if start > at:
                yield Span(number, at, start - at, hole=True)
            yield from _cut(number, start, end, sizes.pack)
            at = end


def _cut(number: int, start: int, end: int, most: int) -> Iterator[Span]:
    while start < end:
        length = min(most, end - start)
        yield Span(number, start, length)
        start += length


def _data(descriptor: int, at: int, size: int) -> tuple[int, int]:
    """Return where the next data of a sparse file begin and end."""
    try:
        start = os.lseek(descriptor, at, os.SEEK_DATA)
        return min(start, size), min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole behind this place
            return size, size
        return at, size


class open_file:  # noqa: N801 - used like a function
    """A file of a tree, open for reading. Raises Unstable when it is gone, or at the end no longer what was found."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __enter__(self) -> Self:
        try:
            self._descriptor = os.open(self._source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise Unstable(f"{self._source.path}: vanished while it was read") from error
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and identity(os.fstat(self._descriptor)) != identity(self._source.info):
                raise Unstable(f"{self._source.path}: changed while it was read")
        finally:
            os.close(self._descriptor)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer with the bytes at ``offset``. Raises Unstable when the file is shorter."""
        done = 0
        while done < len(buffer):
            got = os.preadv(self._descriptor, [buffer[done:]], offset + done)
            if not got:
                raise Unstable(f"{self._source.path}: changed while it was read")
            done += got
