"""What a checkpoint consists of. The manifest is the commit: what has none does not exist. No I/O."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import blake3

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.errors import CorruptCheckpoint
from provisioner.model import JobRef

VERSION = 2
_MOST = 2**63 - 1
"""No file system knows larger sizes."""
_LONGEST = 4096
"""The characters of a path: no kernel takes more."""
_DIGEST = re.compile("[0-9a-f]{64}")
_NAMES = ("utf-8", "surrogateescape")
"""How names that are no UTF-8 are written as text, as ``os.fsdecode`` does."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A stretch of a file: ``length`` bytes at ``offset`` of ``pack``, with their BLAKE3 hash (64 hex digits).

    A hole has no pack and no hash: its bytes are zero and stand nowhere.
    """

    length: int
    pack: str = ""
    offset: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class File:
    """A regular file: path below the checkpoint's root, size in bytes, permission bits, its blobs in order."""

    path: str
    size: int
    mode: int
    blobs: tuple[Blob, ...]


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

    ``job`` is None for one that was pushed without a job. ``time`` is the writer's clock in Unix seconds. ``packs``
    gives the size in bytes of each object that a blob stands in. ``metadata`` holds JSON values of the user.
    """

    job: JobRef | None
    epoch: int
    step: int
    entry: str
    time: float
    packs: Mapping[str, int]
    files: tuple[File, ...]
    folders: tuple[Folder, ...] = ()
    links: tuple[Link, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def position(self) -> Position:
        """Return its place in the order of restores."""
        return Position(self.epoch, self.step)

    @property
    def size(self) -> int:
        """Return the bytes of all files together."""
        return sum(file.size for file in self.files)

    @property
    def disk_bytes(self) -> int:
        """Return what its files take on a disk: their bytes without the holes."""
        return sum(blob.length for _, _, blob in self.stored())

    def stored(self) -> Iterator[tuple[File, int, Blob]]:
        """Yield (file, offset in the file, blob) of everything that is not a hole, in order."""
        for file in self.files:
            at = 0
            for blob in file.blobs:
                if blob.pack:
                    yield file, at, blob
                at += blob.length


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as JSON with the hash of its own body. Equal manifests give equal bytes."""
    number = {identity: index for index, identity in enumerate(manifest.packs)}
    body: dict[str, Any] = {
        "version": VERSION,
        "job": {"name": manifest.job.name, "uid": manifest.job.uid} if manifest.job else None,
        "epoch": manifest.epoch,
        "step": manifest.step,
        "entry": manifest.entry,
        "time": manifest.time,
        "metadata": dict(manifest.metadata),
        "packs": [[identity, size] for identity, size in manifest.packs.items()],
        "files": [
            [
                file.path,
                file.size,
                file.mode,
                [
                    [number[blob.pack], blob.offset, blob.length, blob.digest] if blob.pack else [blob.length]
                    for blob in file.blobs
                ],
            ]
            for file in manifest.files
        ],
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
            raise CorruptCheckpoint("its manifest does not match its own hash")
        if _whole(body["version"]) != VERSION:
            raise CorruptCheckpoint(
                f"its manifest has version {body['version']}, this release reads {VERSION}", hint="use a newer release"
            )
        packs = [(_pack(identity), _whole(size)) for identity, size in body["packs"]]
        manifest = Manifest(
            job=JobRef(_text(body["job"]["name"]), _text(body["job"]["uid"])) if body["job"] is not None else None,
            epoch=_whole(body["epoch"]),
            step=_whole(body["step"]),
            entry=_text(body["entry"]),
            time=_time(body["time"]),
            metadata=_object(body["metadata"]),
            packs=_once(packs),
            files=tuple(
                File(_text(path), _whole(size), _mode(mode), tuple(_blob(packs, extent) for extent in extents))
                for path, size, mode, extents in body["files"]
            ),
            folders=tuple(Folder(_text(path), _mode(mode)) for path, mode in body["folders"]),
            links=tuple(Link(_text(path), _target(target)) for path, target in body["links"]),
        )
        _check(manifest)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, OverflowError) as error:
        raise CorruptCheckpoint("its manifest is not in the form that this release writes") from error
    return manifest


def _blob(packs: list[tuple[str, int]], extent: list[Any]) -> Blob:
    if len(extent) == 1:
        return Blob(_whole(extent[0]))
    number, offset, length, digest = extent
    if not _DIGEST.fullmatch(digest):
        raise ValueError(digest)
    identity, size = packs[_whole(number)]
    if _whole(offset) + _whole(length) > size:
        raise ValueError(offset)
    return Blob(length, identity, offset, digest)


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:  # True is an int, too
        raise ValueError(value)
    return value


def _mode(value: object) -> int:
    mode = _whole(value)
    if mode > 0o777:
        raise ValueError(value)
    return mode


def _time(value: object) -> float:
    if type(value) not in {int, float} or not math.isfinite(value):  # type: ignore[arg-type]
        raise ValueError(value)
    return float(value)  # type: ignore[arg-type]


def _text(value: object) -> str:
    """Return a string that is one name on a disk, and the only spelling of it."""
    if not isinstance(value, str) or value.encode(*_NAMES).decode(*_NAMES) != value:
        raise ValueError(value)
    return value


def _target(value: object) -> str:
    target = _text(value)
    if not target or "\0" in target:
        raise ValueError(value)
    return target


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(value)
    return value


def _pack(value: object) -> str:
    identity = _text(value)
    layout.pack(identity)
    return identity


def _once(packs: list[tuple[str, int]]) -> dict[str, int]:
    by_name = dict(packs)
    if len(by_name) != len(packs):
        raise ValueError(packs)
    return by_name


def _canonical(body: object) -> str:
    # ASCII only: names that are not UTF-8 travel as lone surrogates, which JSON can escape and UTF-8 cannot hold.
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _check(manifest: Manifest) -> None:
    """Refuse paths that leave the entry, are there twice or below a file, and files whose blobs are not their size."""
    if not _is_plain(manifest.entry):
        raise CorruptCheckpoint("its manifest names its entry with a path")
    seen: set[str] = set()
    for path in (item.path for group in (manifest.files, manifest.folders, manifest.links) for item in group):
        parts = path.split("/") if len(path) <= _LONGEST else [""]
        if parts[0] != manifest.entry or not all(_is_plain(part) for part in parts) or path in seen:
            raise CorruptCheckpoint(f"its manifest holds a path that is refused: {path!r}")
        seen.add(path)
    leaves = {item.path for group in (manifest.files, manifest.links) for item in group}
    parents = {path.rpartition("/")[0] for path in seen}
    while parents:
        if wrong := parents & leaves:
            raise CorruptCheckpoint(f"its manifest has something below a file or link: {wrong.pop()!r}")
        parents = {path.rpartition("/")[0] for path in parents if path}
    for file in manifest.files:
        if any(blob.length < 1 for blob in file.blobs) or sum(blob.length for blob in file.blobs) != file.size:
            raise CorruptCheckpoint(f"its manifest has the wrong blobs for {file.path!r}")


def _is_plain(name: str) -> bool:
    return bool(name) and name not in {".", ".."} and "/" not in name and "\0" not in name
