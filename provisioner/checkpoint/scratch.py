"""Directories in which something is gathered until it is whole. What a process that was killed has left is removed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(parent: Path, prefix: str) -> Iterator[Path]:
    """Give a fresh directory ``<prefix>...`` in ``parent``, and remove it at the end, if it is there still.

    It is locked for as long: so one that nobody holds is known to be left over. Raises OSError.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _lock(descriptor)
        if path.is_dir():  # nobody took it for left over before it was locked
            break
        os.close(descriptor)
    try:
        yield path
    finally:
        remove(path)
        os.close(descriptor)


def made(parent: Path, prefix: str) -> list[Path]:
    """Return what ``scratch`` has made in ``parent``, by the names; ``prefix`` is a regular expression."""
    name = re.compile(f"{prefix}[a-z0-9_]{{8}}")  # as mkdtemp makes them
    return [path for path in parent.glob(".*") if name.fullmatch(path.name)]


def remove_left_over(parent: Path, prefix: str) -> None:
    """Remove what dead processes left in ``parent``, see ``made``. What cannot be removed stays."""
    for path in made(parent, prefix):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if _lock(descriptor, fcntl.LOCK_NB):
                remove(path)
        finally:
            os.close(descriptor)


def remove(directory: Path) -> None:
    """Remove what was gathered, folders without a write bit too. What cannot be removed stays."""
    for folder, children, _ in os.walk(directory):
        for path in (f"{folder}/{child}" for child in children):
            if not os.path.islink(path):  # noqa: PTH114 - as below
                os.chmod(path, 0o700)  # noqa: PTH101 - a name that is not UTF-8 stays as it is
    shutil.rmtree(directory, ignore_errors=True)


def _lock(descriptor: int, flags: int = 0) -> bool:
    """Lock a directory until it is closed. False: somebody holds it, or this file system knows no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except OSError:
        return False
    return True
