"""What a killed process leaves in a directory that serves as a store: files that were not written to their end.

obstore writes ``name#1`` and renames it. Such files stand in no listing and cannot be removed through obstore. Object
stores leave nothing: a write that breaks off there was never made.
"""

from __future__ import annotations

import contextlib
import os
import re
from urllib.parse import urlsplit

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store

_UNFINISHED = {
    layout.PACKS: re.compile(r"[0-9a-f]{32}-[0-9a-f]{8}#[0-9]+"),
    layout.CHECKPOINTS: re.compile(r"[0-9]{12}-[0-9]{6}\.json#[0-9]+"),
    layout.SWEEPS: re.compile(r"[0-9a-f]{16}\.(json|clock)#[0-9]+"),
}
"""Only what we have begun to write ourselves: the directory may hold other people's files."""


def remove_unfinished(store: Store, before: float) -> int:
    """Remove the unfinished files of a directory that were last written before ``before``; return their bytes.

    ``before`` is in Unix seconds. A writer whose file is removed under its hands writes it once more.
    """
    parts = urlsplit(store.uri)
    if parts.scheme != "file":
        return 0
    removed = 0
    for part, unfinished in _UNFINISHED.items():
        folder = f"{parts.path}/{part}"
        try:
            names = os.listdir(folder)  # noqa: PTH208 - names are what is wanted
        except OSError:  # none there yet
            continue
        for name in filter(unfinished.fullmatch, names):
            with contextlib.suppress(OSError):  # finished or removed by now
                info = os.lstat(f"{folder}/{name}")
                if info.st_mtime < before:
                    os.unlink(f"{folder}/{name}")  # noqa: PTH108 - a path as text
                    removed += info.st_size
    return removed
