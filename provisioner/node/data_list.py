"""What a machine is to bring to its disk: the list that the controller made, with a link for each file."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import blake3
import zstandard

from provisioner.checkpoint.store import Store
from provisioner.errors import CloudError, StoreError

VERSION = 1
KEPT = "list-"
MAX_BYTES = 2**30
"""A list is at most this long when it is unpacked."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of an entry. ``url`` is a secret: whoever has it reads the object."""

    name: str
    """Where it stands below the entry's folder."""
    size: int | None
    """None where the server does not tell."""
    etag: str
    """What tells one state of the object from the next."""
    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of ``data:``. ``source`` is its address without a query, fit for the log."""

    source: str
    to: str
    files: tuple[File, ...]
    key: str
    """Names it in the cache: the same source and treatment, the same key."""
    sha256: str | None = None
    """Of the one file."""
    unpack: bool = False
    ranges: bool = True
    """The server gives parts of a file."""
    etags: bool = True
    """Its answers carry the etags of the list."""

    def called(self, file: File) -> str:
        """Name a file in messages."""
        return f"{self.source}{file.name}" if self.source.endswith("/") else self.source


def read(store: Store, key: str, folder: Path) -> list[Entry]:
    """Read the list and keep it in ``folder`` (0600): then it goes from the store, as what holds secrets should.

    A later start of the node reads the kept one where the store has none. Raises StoreError for a list that is gone
    or cannot be read, CloudError, OSError.
    """
    data, keep = store.get(key), folder / f"{KEPT}{key.replace('/', '-')}"
    if data is not None:
        for old in folder.glob(f"{KEPT}*"):
            old.unlink()
        draft = keep.with_suffix(".tmp")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
        draft.replace(keep)
        with contextlib.suppress(CloudError):  # its links end by themselves
            store.delete([key])
    else:
        try:
            data = keep.read_bytes()
        except FileNotFoundError:
            raise StoreError(f"the list of data, {key}, is gone from the store") from None
    try:
        return parsed(data)
    except (ValueError, KeyError, TypeError, AttributeError, zstandard.ZstdError) as error:
        raise StoreError(f"the list of data, {key}, cannot be read ({type(error).__name__})") from None


def parsed(data: bytes) -> list[Entry]:
    """Read a list. Raises ValueError, KeyError, TypeError, AttributeError, ZstdError."""
    text = zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_BYTES)
    raw = json.loads(text)
    if raw["version"] != VERSION:
        raise ValueError("version")
    return [_entry(entry) for entry in raw["entries"]]


def _entry(raw: Mapping[str, Any]) -> Entry:
    source, unpack = str(raw["source"]), bool(raw["unpack"])
    identity = json.dumps([source, str(raw["place"]), unpack])
    return Entry(
        source=source,
        to=plain(str(raw["to"])),
        files=tuple(
            File(plain(str(name)), None if size is None else int(size), str(etag), str(url))
            for name, size, etag, url in raw["files"]
        ),
        key=blake3.blake3(identity.encode()).hexdigest()[:32],
        sha256=raw.get("sha256"),
        unpack=unpack,
        ranges=bool(raw["ranges"]),
        etags=bool(raw["etags"]),
    )


def plain(name: str) -> str:
    """Return a path that stays below where it is put. Raises ValueError for another."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise ValueError(name)
    return str(path)
