"""What people hand over when they save or restore by hand: a URI, a path, a step, metadata. Checked at once."""

from __future__ import annotations

import json
import math
import operator
import os
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from provisioner.checkpoint import layout
from provisioner.checkpoint.opening import refuse_cut
from provisioner.checkpoint.usage import Usage
from provisioner.errors import ConfigError

Where: TypeAlias = str | os.PathLike[str]

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ADDRESSES = "write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or file:///DIRECTORY"
LARGEST_STEP = 10**12 - 1
LARGEST_EPOCH = 10**6 - 1


def check_uri(uri: str) -> None:
    """Raise ConfigError for a URI that would lead elsewhere than it seems to; ``open_store`` refuses the others."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        parts = urlsplit("")
    path = parts.path.strip("/").split("/") if parts.path.strip("/") else []
    in_bucket = parts.scheme in {"s3", "gs"} and parts.netloc
    if "@" in parts.netloc:
        raise ConfigError("a store's address holds no key", hint="set the key's environment variables")
    if not uri.isprintable() or not parts.scheme:  # urlsplit drops line ends
        raise ConfigError(f"{uri}: not the address of a store", hint=_ADDRESSES)
    refuse_cut(uri)
    if in_bucket and not _BUCKET.fullmatch(parts.netloc):
        raise ConfigError(f"{uri}: {parts.netloc} is not the name of a bucket", hint=_ADDRESSES)
    if in_bucket and not {"", ".", ".."}.isdisjoint(path):
        raise ConfigError(
            f"{uri}: a prefix has no empty parts, and none that are . or ..", hint="choose another prefix"
        )


def is_absent(uri: str) -> bool:
    """Say whether a URI names a directory that is not there."""
    parts = urlsplit(uri)
    return (
        parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc and not os.path.lexists(parts.path)
    )


def entry(path: Where, uri: str) -> Path:
    """Return what is to be saved to a store, with its own name. Raises ConfigError, OSError."""
    if not os.fspath(path):
        raise ConfigError("an empty path", hint="name a file or directory")
    found = Path(os.path.abspath(path))  # noqa: PTH100 - Path has no way to say this without following links
    found = _resolved(found) if found.is_symlink() else found
    if not found.exists():
        raise ConfigError(f"{os.fspath(path)}: no such file or directory")
    if not (found.is_file() or found.is_dir()) or not found.name:
        raise ConfigError(f"{os.fspath(path)}: neither a file nor a directory that can be saved")
    parts = urlsplit(uri)
    if parts.scheme == "file" and _resolved(Path(parts.path)).is_relative_to(_resolved(found)):
        raise ConfigError(f"{os.fspath(path)}: the store {uri} lies in it", hint="name a directory beside it")
    return found


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError:  # as Python says it up to 3.12
        raise ConfigError(f"{path}: a link that leads to itself") from None


def place(target: Where) -> Path:
    """Return where something is to be restored. Raises ConfigError."""
    if not os.fspath(target):
        raise ConfigError("an empty path", hint="name a directory that is empty or not there")
    return Path(target).absolute()


def seeds(given: object) -> list[Path]:
    """Return local files and directories to take bytes from. Raises ConfigError."""
    if isinstance(given, str | bytes | os.PathLike) or not isinstance(given, Iterable):
        raise ConfigError(f"seeds: {given!r} is no list of directories", hint="write seeds=[...]")
    found = []
    for one in given:
        if not isinstance(one, str | os.PathLike) or not os.fspath(one) or not Path(one).exists():
            raise ConfigError(f"seeds: {one}: no such file or directory")
        found.append(Path(one))
    return found


def address(uri: object) -> str:
    """Return the URI of a store. Raises ConfigError, for a path too."""
    if isinstance(uri, os.PathLike):
        path = os.path.abspath(os.fsdecode(uri))  # noqa: PTH100 - a path-like need not be a Path
        raise ConfigError(
            f"{os.fsdecode(uri)}: a path, where the URI of a store is needed", hint=f"write file://{path}"
        )
    if not isinstance(uri, str):
        raise ConfigError(f"{uri!r}: not the address of a store", hint=_ADDRESSES)
    check_uri(uri)
    return uri


def whole(name: str, value: object) -> int:
    """Return a whole number, be it one of numpy. Raises ConfigError for anything else, True and 1.0 too."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise ConfigError(f"{name} {value!r}: not a whole number")


def whole_or_none(name: str, value: object) -> int | None:
    """Return a whole number, or None for None. Raises ConfigError."""
    return None if value is None else whole(name, value)


def grace(seconds: object) -> float:
    """Return a time in seconds. Raises ConfigError for what is none."""
    try:
        number = math.nan if isinstance(seconds, bool | str | bytes) else float(seconds)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ConfigError(f"grace_s {seconds!r}: not a time in seconds, from 0 on")
    return number


def event(cancel: object) -> threading.Event | None:
    """Return the event that ends a method, or None. Raises ConfigError for anything else."""
    if cancel is None or isinstance(cancel, threading.Event):
        return cancel
    raise ConfigError(f"cancel {cancel!r}: not a threading.Event")


def check_epoch(epoch: int) -> None:
    """Raise ConfigError for what is no epoch."""
    if not 0 <= epoch <= LARGEST_EPOCH:
        raise ConfigError(f"epoch {epoch}: an epoch is a number from 0 to {LARGEST_EPOCH}")


def plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as JSON brings it back. Raises ConfigError for what JSON cannot hold, NaN and infinity too."""

    def number(value: Any) -> Any:
        item = getattr(value, "item", None)  # a number of numpy, a tensor of one
        if item is None:
            raise TypeError(f"{type(value).__name__} is no JSON value")
        return item()

    try:
        values: dict[str, Any] = json.loads(json.dumps(dict(metadata), default=number, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        hint = "give texts, finite numbers, true, false, null, lists and objects of them"
        raise ConfigError(f"metadata: {error}", hint=hint) from None
    return values


def step(uri: str, entry: Path, step: int | None, used: Usage, *, free: bool) -> int:
    """Return the step to save. Raises ConfigError."""
    newest = used.positions[0].step if used.positions else None
    if step is None:
        step = layout.step_of(entry.name)
        if step is None or (newest is not None and step <= newest):
            step = (newest or 0) + 1
    if not 0 <= step <= LARGEST_STEP:
        hint = "name a smaller step, or choose another prefix" if step > LARGEST_STEP else ""
        raise ConfigError(f"step {step}: a step is a number from 0 to {LARGEST_STEP}", hint=hint)
    if newest is not None and step <= newest and not free:
        raise ConfigError(
            f"{uri}: step {step} is not newer than step {newest}, which the job would restore",
            hint=f"take a step from {newest + 1} on",
        )
    return step
