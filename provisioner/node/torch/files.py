"""Checkpoints that a trainer writes, each a file or a directory that appears by a rename under a name with its step."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NAME = re.compile(r"(?:step|checkpoint)[-=](\d+)(?:\.ckpt)?\Z")
_DRAFT = re.compile(r"\.(?:step|checkpoint)-\d+(?:\.ckpt)?(?:\.old)?\.tmp\Z")


def newest_first(*folders: Path) -> list[Path]:
    """List what has a step at the end of its name in some directories, the highest first."""
    found = []
    for path in (path for folder in folders if folder.is_dir() for path in folder.iterdir()):
        match = _NAME.search(path.name)
        if match and not path.name.startswith("."):
            found.append((int(match.group(1)), path))
    return [path for _, path in sorted(found, reverse=True)]


def is_whole(path: Path) -> bool:
    """Say whether a file of torch.save has its end. What is in it is read later; a directory is taken as it is."""
    return path.is_dir() or zipfile.is_zipfile(path)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers: JSON has no others."""
    found = {}
    for name, value in metrics.items():
        with contextlib.suppress(RuntimeError, TypeError, ValueError):  # a text, a tensor of several numbers
            if math.isfinite(number := float(value)):
                found[name] = number
    return found


def step_of(path: Path) -> int:
    """Return the step that a name ends in."""
    match = _NAME.search(path.name)
    return int(match.group(1)) if match else 0


def put(draft: Path, final: Path) -> None:
    """Give a finished draft its name, once its bytes are on the disk. What has that name already is replaced."""
    for path in (*draft.rglob("*"), draft):
        _sync(path)
    if final.exists():
        hide(final)
    draft.rename(final)
    _sync(final.parent)


def link(source: Path, draft: Path) -> None:
    """Make a directory whose files are those of another: by hard links, or copies on another disk."""
    remove(draft)
    shutil.copytree(source, draft, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def prune(folder: Path, keep: int, step: int) -> None:
    """Remove all but the newest of ours up to a step: what is above it could not be read, and does not count.

    A trainer's own, as ``epoch=3-step=40.ckpt``, are left alone.
    """
    ours = [path for path in newest_first(folder) if _NAME.match(path.name)]
    for path in [path for path in ours if step_of(path) <= step][keep:]:
        hide(path)


def sweep(folder: Path) -> None:
    """Remove the drafts that a process which was killed has left."""
    for path in folder.glob(".*.tmp"):
        if _DRAFT.match(path.name):
            remove(path)


def hide(path: Path) -> None:
    """Remove a checkpoint: first out of sight, so that no half of it is ever taken for one."""
    doomed = path.with_name(f".{path.name}.old.tmp")
    try:
        path.rename(doomed)
    except OSError:
        return
    remove(doomed)


def remove(path: Path) -> None:
    """Remove a file or a directory that may be there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
