"""What a checkpoint says of itself: ``metadata.json`` at the top of its directory."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path

NAME = "metadata.json"
MAX_BYTES = 16 * 1024
_LASTING = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.EINVAL,
        errno.ENXIO,
        errno.ENODEV,
        errno.EOVERFLOW,
    }
)
"""Errors that another try does not change. Others pass: no descriptor left, a network disk that stumbles."""


class Metadata:
    """Reads it. What cannot be taken over is told once, in a line, and left out."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """Take where the lines go."""
        self._report = report
        self._told: set[str] = set()

    def of(self, entry: Path) -> dict[str, object]:
        """Return the texts, numbers, truth values and nulls of the object in the file; nothing where there is none.

        A checkpoint that is a file has none. Raises OSError for what may be read at another try (``lasts``).
        """
        try:
            data = _read(entry / NAME)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            if not lasts(error):
                raise
            self._tell(f"{NAME} of a checkpoint cannot be read ({error.strerror}); it is left out")
            return {}
        if data is None:
            self._tell(f"{NAME} of a checkpoint is no file of at most {MAX_BYTES // 1024} KiB; it is left out")
            return {}
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self._tell(f"{NAME} of a checkpoint holds no JSON object; it is left out")
            return {}
        kept = {name: item for name, item in value.items() if _is_plain(item)}
        if strange := sorted(value.keys() - kept.keys()):
            names = ", ".join(repr(name[:40]) for name in strange[:5]) + (", ..." if len(strange) > 5 else "")
            self._tell(f"{NAME} of a checkpoint: {names} left out: no text, finite number, true, false or null")
        return kept

    def _tell(self, line: str) -> None:
        if line not in self._told and len(self._told) < 100:
            self._told.add(line)
            self._report(line)


def lasts(error: OSError) -> bool:
    """Say whether a file cannot be read for a reason that another try will meet, too."""
    return error.errno in _LASTING


def _read(path: Path) -> bytes | None:
    """Return a small regular file; None for anything else. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold up the commit
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = b""
        while part := os.read(descriptor, MAX_BYTES + 1 - len(data)):
            data += part
        return data if len(data) <= MAX_BYTES else None
    finally:
        os.close(descriptor)


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)
