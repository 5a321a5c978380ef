"""What a checkpoint consists of. The manifest is the commit: what has none does not exist. No I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import blake3

from provisioner.checkpoint.layout import Position
from provisioner.errors import CorruptCheckpoint
from provisioner.model import JobRef

VERSION = 1


@dataclass(frozen=True, slots=True)
class File:
    """A regular file: path below the checkpoint's root, size in bytes, permission bits, chunk hashes in order."""

    path: str
    size: int
    mode: int
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory, empty ones too."""

    path: str
    mode: int


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link, kept as it is; what it points at is not part of the checkpoint."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One committed checkpoint. ``entry`` is its name in the checkpoint directory; paths start with that name.

    ``time`` is the node's clock in Unix seconds, ``chunk_bytes`` the size of every chunk but a file's last.
    """

    job: JobRef
    epoch: int
    step: int
    entry: str
    time: float
    chunk_bytes: int
    files: tuple[File, ...]
    folders: tuple[Folder, ...] = ()
    links: tuple[Link, ...] = ()

    @property
    def position(self) -> Position:
        """Return its place in the order of restores."""
        return Position(self.epoch, self.step)

    @property
    def size(self) -> int:
        """Return the bytes of all files together."""
        return sum(file.size for file in self.files)

    @property
    def chunks(self) -> frozenset[str]:
        """Return the hashes of all chunks."""
        return frozenset(digest for file in self.files for digest in file.chunks)


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as JSON with the hash of its own body. Equal manifests give equal bytes."""
    body: dict[str, Any] = {
        "version": VERSION,
        "job": {"name": manifest.job.name, "uid": manifest.job.uid},
        "epoch": manifest.epoch,
        "step": manifest.step,
        "entry": manifest.entry,
        "time": manifest.time,
        "chunk_bytes": manifest.chunk_bytes,
        "files": [[file.path, file.size, file.mode, list(file.chunks)] for file in manifest.files],
        "folders": [[folder.path, folder.mode] for folder in manifest.folders],
        "links": [[link.path, link.target] for link in manifest.links],
    }
    text = _canonical(body)
    return f'{{"blake3":"{blake3.blake3(text.encode()).hexdigest()}","body":{text}}}'.encode()


def decode(data: bytes) -> Manifest:
    """Read a manifest back. Raises CorruptCheckpoint when its hash, its form or a path in it is wrong."""
    try:
        outer = json.loads(data)
        body = outer["body"]
        if blake3.blake3(_canonical(body).encode()).hexdigest() != outer["blake3"]:
            raise CorruptCheckpoint("a manifest does not match its own hash")
        if body["version"] != VERSION:
            raise CorruptCheckpoint(
                f"a manifest has version {body['version']}, this release reads {VERSION}", hint="use a newer release"
            )
        manifest = Manifest(
            job=JobRef(str(body["job"]["name"]), str(body["job"]["uid"])),
            epoch=int(body["epoch"]),
            step=int(body["step"]),
            entry=str(body["entry"]),
            time=float(body["time"]),
            chunk_bytes=int(body["chunk_bytes"]),
            files=tuple(File(path, size, mode, tuple(chunks)) for path, size, mode, chunks in body["files"]),
            folders=tuple(Folder(path, mode) for path, mode in body["folders"]),
            links=tuple(Link(path, target) for path, target in body["links"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpoint("a manifest is not in the form that this release writes") from error
    _check(manifest)
    return manifest


def _canonical(body: object) -> str:
    # ASCII only: names that are not UTF-8 travel as lone surrogates, which JSON can escape and UTF-8 cannot hold.
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _check(manifest: Manifest) -> None:
    """Refuse paths that leave the entry, are there twice, or have too few or too many chunks for their size."""
    if not _is_plain(manifest.entry):
        raise CorruptCheckpoint("a manifest names its entry with a path")
    seen: set[str] = set()
    for path in (item.path for group in (manifest.files, manifest.folders, manifest.links) for item in group):
        parts = PurePosixPath(path).parts
        clean = parts and parts[0] == manifest.entry and all(_is_plain(part) for part in parts)
        if not clean or "/".join(parts) != path or path in seen:
            raise CorruptCheckpoint(f"a manifest holds a path that is refused: {path!r}")
        seen.add(path)
    if manifest.chunk_bytes < 1:
        raise CorruptCheckpoint("a manifest gives a chunk size below 1")
    for file in manifest.files:
        if file.size < 0 or len(file.chunks) != -(-file.size // manifest.chunk_bytes):
            raise CorruptCheckpoint(f"a manifest has the wrong number of chunks for {file.path!r}")


def _is_plain(name: str) -> bool:
    return bool(name) and name not in {".", ".."} and "/" not in name and "\0" not in name
