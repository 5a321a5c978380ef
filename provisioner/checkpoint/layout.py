"""Where each thing stands in the store, relative to ``<store>/<job name>/``. No I/O."""

from __future__ import annotations

import re
from typing import NamedTuple

from provisioner.errors import ConfigError

SPEC = "spec.json"
DONE = "done.json"
EPOCHS = "epochs"
PACKS = "packs"
SWEEPS = "sweeps"
CHECKPOINTS = "checkpoints"
RUNTIME = "runtime"
WORKDIR = "workdir"
SHARED_RUNTIME = ".runtime"
"""Beside the jobs, whose names have no dot: what starts a node is the same for all of them. Older releases put it into
each job's own ``RUNTIME``."""

_MANIFEST = re.compile(r"checkpoints/([0-9]{12})-([0-9]{6})\.json")
_LOG_PART = re.compile(r"/log/([0-9]{6,12})\.txt\.zst$")
_PACK = re.compile(r"[0-9a-f]{32}-[0-9a-f]{8}")
_STEP = re.compile(r"(\d{1,12})(?:\.[A-Za-z][A-Za-z0-9]*)*")
_UNFINISHED = (".tmp", ".part", ".partial")


class Position(NamedTuple):
    """A checkpoint's place in the order of restores: the higher epoch first, then the higher step."""

    epoch: int
    step: int


def owner(epoch: int) -> str:
    """Return the key of the fence of an epoch."""
    return f"{EPOCHS}/{epoch}/owner.json"


def heartbeat(epoch: int) -> str:
    """Return the key of the heartbeat of an epoch."""
    return f"{EPOCHS}/{epoch}/heartbeat.json"


def hint(epoch: int) -> str:
    """Return the key of what the controller tells the node of an epoch about its end."""
    return f"{EPOCHS}/{epoch}/hint.json"


def call(epoch: int) -> str:
    """Return the key of what lets a machine that stands by begin."""
    return f"{EPOCHS}/{epoch}/call.json"


def bootstrap(epoch: int, token: str) -> str:
    """Return the key of what the machine of one claim is told at its start. Holds secrets; short-lived.

    Each claim has its own: a machine of an earlier claim, whose answer was lost, must not read a later one's token.
    """
    return f"{EPOCHS}/{epoch}/bootstrap-{token[:16]}.json"


def data(epoch: int) -> str:
    """Return the key of the list of data for the node of an epoch. Holds links, which are secrets."""
    return f"{EPOCHS}/{epoch}/data.json.zst"


def logs(epoch: int) -> str:
    """Return the folder of an epoch's log."""
    return f"{EPOCHS}/{epoch}/log"


def log_part(epoch: int, number: int) -> str:
    """Return the key of one part of an epoch's log."""
    return f"{logs(epoch)}/{number:06d}.txt.zst"


def log_number(key: str) -> int | None:
    """Read the number back from the key of a part of a log; None for a key that is none."""
    match = _LOG_PART.search(key)
    return int(match[1]) if match else None


def last_lines(epoch: int) -> str:
    """Return the key of the last lines of a command that failed."""
    return f"{EPOCHS}/{epoch}/last_lines.txt"


def pack(identity: str) -> str:
    """Return the key of a pack by its id. Raises ValueError for what is none."""
    if not _PACK.fullmatch(identity):
        raise ValueError(identity)
    return f"{PACKS}/{identity}"


def pack_of(key: str) -> str | None:
    """Read the id back from a pack's key; None for a key that is none."""
    identity = key.removeprefix(f"{PACKS}/")
    return identity if key != identity and _PACK.fullmatch(identity) else None


def manifest(position: Position) -> str:
    """Return the key of a checkpoint's manifest. Raises ConfigError for numbers that have no place in a key."""
    if not (0 <= position.step < 10**12 and 0 <= position.epoch < 10**6):
        raise ConfigError(
            f"step {position.step} of epoch {position.epoch} cannot be saved",
            hint="steps have at most 12 digits, epochs 6, and none is negative",
        )
    return f"{CHECKPOINTS}/{position.step:012d}-{position.epoch:06d}.json"


def position(key: str) -> Position | None:
    """Read the position back from a manifest's key; None for a key that is none."""
    match = _MANIFEST.fullmatch(key)
    return Position(epoch=int(match[2]), step=int(match[1])) if match else None


def step_of(name: str) -> int | None:
    """Return the step at the end of a checkpoint's name (``step-40``, ``ckpt_000040.npz``, ``epoch=3-step=40.ckpt``).

    None for a name that is not a finished checkpoint: hidden, still being written, or without a number at its end.
    """
    if is_unfinished(name):
        return None
    stem = name.split(".", 1)[0]
    match = re.search(r"\d{1,12}$", stem)
    if match is None or (len(stem) > len(match[0]) and stem[-len(match[0]) - 1].isdigit()):
        return None
    rest = name[len(stem) :]
    return int(match[0]) if _STEP.fullmatch(match[0] + rest) else None


def is_unfinished(name: str) -> bool:
    """Say whether a name in the checkpoint directory is hidden or still being written."""
    return name.startswith((".", "tmp-", "tmp_")) or name.endswith(_UNFINISHED)
