"""Which checkpoints stay: the last n, the first of each stretch of steps, the best by a metric.

Manifests only: what they name may be shared with a save in flight and is swept elsewhere (``sweep.py``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.restore import committed, load
from provisioner.checkpoint.store import Store
from provisioner.errors import CorruptCheckpoint
from provisioner.model import JobRef


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the ``count`` checkpoints whose number ``metric`` in their metadata is the lowest or highest."""

    metric: str
    mode: Literal["min", "max"]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Policy:
    """Keep the ``last`` newest, the first of each ``every`` steps (counted from 0), and the ``best``."""

    last: int
    every: int | None = None
    best: Best | None = None

    def __post_init__(self) -> None:
        """Refuse numbers below 1: a policy that keeps nothing is a mistake."""
        if self.last < 1 or (self.every is not None and self.every < 1) or (self.best and self.best.count < 1):
            raise ValueError(self)


def choose(found: Iterable[tuple[Position, Mapping[str, Any]]], policy: Policy) -> set[Position]:
    """Return the positions that stay, of checkpoints with their metadata.

    Newer is the higher epoch, then the higher step. Of a stretch of steps the lowest step stays, of equal ones the
    newer. A metric that is missing, no number, or not finite is never the best; of equal ones the newer is.
    """
    checkpoints = dict(found)
    newest_first = sorted(checkpoints, reverse=True)
    kept = set(newest_first[: policy.last])
    if policy.every is not None:
        first: dict[int, Position] = {}
        for position in sorted(newest_first, key=lambda position: position.step):  # stable: of one step the newer
            first.setdefault(position.step // policy.every, position)
        kept.update(first.values())
    if policy.best is not None:
        scored = [
            (value if policy.best.mode == "max" else -value, position)
            for position, metadata in checkpoints.items()
            if (value := _number(metadata.get(policy.best.metric))) is not None
        ]
        kept.update(position for _, position in sorted(scored, reverse=True)[: policy.best.count])
    return kept


def prune(
    store: Store,
    job: JobRef | None,
    policy: Policy,
    *,
    newest: Position,
    protect: Collection[Position] = (),
    known: dict[Position, Mapping[str, Any]] | None = None,
) -> list[str]:
    """Remove the job's manifests that the policy does not keep; return the removed keys.

    Nothing above ``newest`` (the caller's last commit) is touched or counted, nor what is in ``protect`` removed, nor
    another job's. A manifest that cannot be read does not count as kept, so damage never pushes the last good one
    out. ``known`` holds the metadata of checkpoints that were read before and are the job's; it follows what is in the
    store, and saves reading them again.

    Raises CloudError.
    """
    known = {} if known is None else known
    positions = [position for position in committed(store) if position <= newest]
    for gone in known.keys() - set(positions):
        if gone <= newest:
            del known[gone]
    for position in positions:
        if position not in known and (metadata := _metadata(store, position, job)) is not None:
            known[position] = metadata
    ours = {position: known[position] for position in positions if position in known}
    kept = choose(ours.items(), policy) | {newest, *protect}
    removed = sorted(ours.keys() - kept, reverse=True)
    store.delete([layout.manifest(position) for position in removed])
    for position in removed:
        del known[position]
    return [layout.manifest(position) for position in removed]


def _metadata(store: Store, position: Position, job: JobRef | None) -> Mapping[str, Any] | None:
    """Return a checkpoint's metadata; None when it is damaged, gone or another job's."""
    try:
        manifest = load(store, position, job)
    except CorruptCheckpoint:
        return None
    return manifest.metadata if manifest is not None and manifest.job == job else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None
