"""Will a save be done in time? From how long the last one took: a notice leaves a time, and a save needs one."""

from __future__ import annotations

import os
from pathlib import Path

from provisioner.checkpoint.save import Commit

NOTICE_S = {"aws": 120.0, "gcp": 30.0}
"""What a cloud leaves between its notice to a spot machine and the end, in seconds."""
SURELY = 1.5
"""A save is not begun when it is reckoned to need so many times what is left: a guess may be wrong by less."""


def needs_s(size_bytes: int, last: Commit | None) -> float:
    """Return how long a save of this size is reckoned to take, in seconds; 0 where nothing is known."""
    if last is None or not last.total_bytes:
        return 0.0
    return last.seconds * size_bytes / last.total_bytes


def too_late(size_bytes: int, left_s: float, last: Commit | None) -> str:
    """Say that a save cannot be done in the time that is left, or nothing while it may."""
    need = needs_s(size_bytes, last)
    if need <= SURELY * left_s:
        return ""
    return f"it would take about {need:.0f} s, and {max(0.0, left_s):.0f} s are left"


def longer_than_notice(commit: Commit, cloud: str, leaves: float | None = None) -> str:
    """Say that saves take longer than what this cloud leaves after a notice, or nothing.

    ``leaves`` is what this very machine was started with, in seconds, where that is known.
    """
    leaves = leaves or NOTICE_S.get(cloud)
    if leaves is None or commit.seconds <= leaves:
        return ""
    return (
        f"a save takes {commit.seconds:.0f} s, and this cloud leaves {leaves:.0f} s after a notice: what is trained "
        "since the last checkpoint will be lost with this machine"
    )


def size_of(entry: Path) -> int:
    """Return the bytes of a file, or of all files below a directory. What is not there any more counts nothing."""
    try:
        if not entry.is_dir():
            return entry.stat().st_size
        return sum(size_of(Path(item.path)) for item in os.scandir(entry) if not item.is_symlink())
    except OSError:
        return 0
