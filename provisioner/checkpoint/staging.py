"""What a killed process leaves in a directory that serves as a store: files that were not written to their end.

obstore writes ``name#1`` and renames it. Such files stand in no listing and cannot be removed through obstore. Object
stores leave nothing: a write that breaks off there was never made.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store

_OF_A_JOB: Final = re.compile(
    r"(?:(?:spec|done)\.json"
    rf"|{layout.PACKS}/[0-9a-f]{{32}}-[0-9a-f]{{8}}"
    rf"|{layout.CHECKPOINTS}/[0-9]{{12}}-[0-9]{{6}}\.json"
    rf"|{layout.SWEEPS}/[0-9a-f]{{16}}\.(?:json|clock)"
    rf"|{layout.WORKDIR}/[0-9a-f]{{64}}\.tar\.zst"
    rf"|{layout.EPOCHS}/[0-9]{{1,9}}/(?:(?:owner|heartbeat|hint|call|bootstrap-[0-9a-f]{{1,16}})\.json"
    r"|data\.json\.zst|last_lines\.txt|log/[0-9]{6,12}\.txt\.zst)"
    r")#[0-9]+"
)
_OF_ALL: Final = re.compile(
    rf"{re.escape(layout.SHARED_RUNTIME)}/(?:[0-9a-f]{{64}}\.tar\.gz|[0-9a-f]{{16}}/[\w.+-]+\.whl|used/[a-z0-9-]+\.json)"
    r"#[0-9]+"
)
"""Only what we have begun to write ourselves: the directory may hold other people's files."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Such a file, by its key. ``written`` is when it was last written, Unix seconds; ``size`` in bytes."""

    key: str
    path: Path
    written: float
    size: int


def unfinished(store: Store, *, shared: bool = False) -> Iterator[Unfinished]:
    """Yield the unfinished files of a job's directory; ``shared``: of what all jobs share, in the one above it."""
    parts = urlsplit(store.uri)
    if parts.scheme != "file":
        return
    pattern, top = (_OF_ALL, f"{parts.path}/{layout.SHARED_RUNTIME}") if shared else (_OF_A_JOB, parts.path)
    for folder, _, names in os.walk(top):
        for name in names:
            path = Path(folder, name)
            key = str(path.relative_to(parts.path)) if "#" in name else ""
            if pattern.fullmatch(key):
                with contextlib.suppress(OSError):  # finished or removed by now
                    info = path.lstat()
                    yield Unfinished(key, path, info.st_mtime, info.st_size)


def remove_unfinished(store: Store, before: float) -> int:
    """Remove the unfinished files of a job's directory that were last written before ``before``; return their bytes.

    ``before`` is in Unix seconds. A writer whose file is removed under its hands writes it once more.
    """
    removed = 0
    for one in unfinished(store):
        if one.written < before:
            with contextlib.suppress(OSError):
                one.path.unlink()
                removed += one.size
    return removed
