"""Unpack an archive that somebody else made: into files under hashed names, so that nothing in it leads outside."""

from __future__ import annotations

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO

import blake3
import zstandard

from provisioner.errors import JobFailed
from provisioner.node.data_cache import Folder, Kept, kept_as

PIECE_BYTES = 1024 * 1024
MOST_MEMBERS = 5_000_000
_ZSTD, _ZIP = b"\x28\xb5\x2f\xfd", (b"PK\x03\x04", b"PK\x05\x06")
_LZMA = getattr(zipfile, "lzma", None)
"""Not every Python is built with it."""
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zstandard.ZstdError,
    zlib.error,
    EOFError,
    NotImplementedError,
    UnicodeError,
    *((_LZMA.LZMAError,) if _LZMA else ()),
)


@dataclass
class _Unpacking:
    folder: Folder
    what: str
    on_bytes: Callable[[int], None]
    files: dict[str, Kept] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    members: int = 0

    def refuse(self, name: str, why: str) -> JobFailed:
        shown = "".join(letter if letter.isprintable() else "?" for letter in name)[:80]
        return JobFailed(f"{self.what}: {shown!r} {why}: the archive is refused")

    def name(self, raw: str) -> str:
        """Return a member's path, plain. Raises JobFailed for one that leads outside."""
        self.members += 1
        if self.members > MOST_MEMBERS:
            raise self.refuse(raw, f"is member {self.members}")
        path = PurePosixPath(raw)
        if path.is_absolute() or ".." in path.parts or "\0" in raw:
            raise self.refuse(raw, "leads out of its folder")
        if any(len(part.encode("utf-8", "surrogateescape")) > 255 for part in path.parts):
            raise self.refuse(raw, "has too long a name")
        return str(path)

    def directory(self, name: str) -> None:
        """Take a folder, and those above it."""
        for path in (PurePosixPath(name), *PurePosixPath(name).parents):
            if str(path) in self.files:
                raise self.refuse(name, "is a file and a folder")
            self.folders.add(str(path))

    def file(self, name: str, source: IO[bytes], *, executable: bool) -> None:
        """Take a file. One that stands there twice counts as it stands last, as for tar."""
        self.directory(str(PurePosixPath(name).parent))
        if name in self.folders:
            raise self.refuse(name, "is a file and a folder")
        place = self.folder.place_in_tree(name)
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.unlink(missing_ok=True)
        digest = blake3.blake3()
        with place.open("xb") as file:
            while piece := source.read(PIECE_BYTES):
                self.on_bytes(len(piece))
                digest.update(piece)
                file.write(piece)
        place.chmod(0o555 if executable else 0o444)
        self.files[name] = kept_as(place, name, digest.hexdigest(), self.folder.boot, executable=executable)

    def copy(self, name: str, of: str) -> None:
        """Take a link to a file that came before: the same file under another name."""
        before = self.files.get(of)
        if before is None:
            raise self.refuse(name, "is a link to what is not in the archive before it")
        if name == of:
            return
        self.directory(str(PurePosixPath(name).parent))
        if name in self.folders:
            raise self.refuse(name, "is a file and a folder")
        place = self.folder.place_in_tree(name)
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.unlink(missing_ok=True)
        place.hardlink_to(self.folder.place_in_tree(of))
        self.files[name] = replace(before, name=name)


def unpack(archive: Path, folder: Folder, what: str, on_bytes: Callable[[int], None], state: str) -> None:
    """Unpack into the tree of a folder, all or nothing.

    ``what`` names the archive, ``state`` its content; ``on_bytes`` is told of bytes as they are written, and may raise.
    Symbolic links become hard links to the files that they lead to inside the archive. Raises JobFailed for an archive
    that is damaged, encrypted, leads outside or holds a device; OSError.
    """
    folder.forget_tree()
    into = _Unpacking(folder, what, on_bytes)
    try:
        with archive.open("rb") as file:
            head = file.read(4)
        if head in _ZIP:
            _zip(archive, into)
        else:
            _tar(archive, into, zstd=head == _ZSTD)
    except _DAMAGED as error:
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise JobFailed(f"{what}: the archive cannot be unpacked ({reason})") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise JobFailed(f"{what}: the archive cannot be unpacked ({error})") from None  # bzip2's word for damage
    except RuntimeError:  # zipfile's word for it
        raise JobFailed(f"{what}: the archive is encrypted; unpack it first") from None
    if not into.files:
        raise JobFailed(f"{what}: the archive holds no file")
    folder.write_tree(replace(kept, etag=state) for kept in into.files.values())


def _tar(archive: Path, into: _Unpacking, *, zstd: bool) -> None:
    links: list[tuple[str, str]] = []
    with _opened(archive, zstd=zstd) as tar:
        for member in tar:
            name = into.name(member.name)
            if member.isdir():
                into.directory(name)
            elif member.issym():
                links.append((name, str(PurePosixPath(name).parent / member.linkname)))
            elif member.islnk():
                into.copy(name, into.name(member.linkname))
            elif member.isreg():
                source = tar.extractfile(member)
                assert source is not None  # noqa: S101 - it is a regular file
                into.file(name, source, executable=bool(member.mode & 0o111))
            else:
                raise into.refuse(member.name, "is a device or a pipe")
            tar.members = []  # type: ignore[attr-defined]  # it remembers all of them, 1 KiB each
    _resolve(links, into)


@contextmanager
def _opened(archive: Path, *, zstd: bool) -> Iterator[tarfile.TarFile]:
    if not zstd:
        with tarfile.open(archive, "r|*") as tar:
            yield tar
        return
    with (
        archive.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as plain,
        tarfile.open(fileobj=plain, mode="r|") as tar,
    ):
        yield tar


def _zip(archive: Path, into: _Unpacking) -> None:
    links: list[tuple[str, str]] = []
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            name, mode = into.name(member.filename), member.external_attr >> 16
            if member.is_dir():
                into.directory(name)
                continue
            if stat.S_IFMT(mode) not in {0, stat.S_IFREG, stat.S_IFLNK}:
                raise into.refuse(member.filename, "is a device or a pipe")
            with zipped.open(member) as source:
                if stat.S_ISLNK(mode):
                    to = source.read(4096).decode("utf-8", "surrogateescape")
                    links.append((name, str(PurePosixPath(name).parent / to)))
                else:
                    into.file(name, source, executable=bool(mode & 0o111))
    _resolve(links, into)


def _resolve(links: list[tuple[str, str]], into: _Unpacking) -> None:
    """Turn symbolic links into hard links to what they lead to, also by way of another link."""
    targets = {name: _normal(into, name, to) for name, to in links}
    for name, first in targets.items():
        to, seen = first, {name}
        while to in targets:
            if to in seen:
                raise into.refuse(name, "is a link that leads round in a circle")
            seen.add(to)
            to = targets[to]
        if to in into.files:
            into.copy(name, to)
            continue
        below = [file for file in into.files if file.startswith(f"{to}/")]
        if not below or name.startswith(f"{to}/"):
            raise into.refuse(name, "is a link to what is not in the archive")
        for file in below:
            into.copy(str(name / PurePosixPath(file).relative_to(to)), file)


def _normal(into: _Unpacking, name: str, to: str) -> str:
    """Return where a link leads, without ``..``. Raises JobFailed where that is outside."""
    parts: list[str] = []
    for part in PurePosixPath(to).parts:
        if part == ".." and parts:
            parts.pop()
        elif part in {"..", "/"}:
            raise into.refuse(name, "is a link that leads out of its folder")
        else:
            parts.append(part)
    return str(PurePosixPath(*parts))
