"""What a killed process leaves in a directory that serves as a store: files that were not written to their end.

obstore writes ``name#1`` and renames it. Such files stand in no listing and cannot be removed through obstore. Object
stores leave nothing: a write that breaks off there was never made.
"""

from __future__ import annotations

import contextlib
import os
import re
from urllib.parse import urlsplit

from provisioner.checkpoint.store import Store

_UNFINISHED = re.compile(r".+#[0-9]+")


def remove_unfinished(store: Store, before: float) -> int:
    """Remove the unfinished files of a directory that were last written before ``before``; return their bytes.

    ``before`` is in Unix seconds. A writer whose file is removed under its hands writes it once more.
    """
    parts = urlsplit(store.uri)
    if parts.scheme != "file":
        return 0
    removed = 0
    for folder, _, names in os.walk(parts.path):
        for name in filter(_UNFINISHED.fullmatch, names):
            with contextlib.suppress(OSError):  # finished or removed by now
                info = os.lstat(f"{folder}/{name}")
                if info.st_mtime < before:
                    os.unlink(f"{folder}/{name}")  # noqa: PTH108 - a path as text
                    removed += info.st_size
    return removed
