"""Keep the last n checkpoints. Manifests only: chunks may be shared with a save in flight and are swept elsewhere."""

from __future__ import annotations

from collections.abc import Collection

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.restore import committed, load
from provisioner.checkpoint.store import Store
from provisioner.errors import CorruptCheckpoint
from provisioner.model import JobRef


def prune(
    store: Store,
    job: JobRef,
    keep: int,
    *,
    newest: Position,
    protect: Collection[Position] = (),
    known: set[Position] | None = None,
) -> list[str]:
    """Remove the job's manifests behind the ``keep`` newest valid ones; return the removed keys.

    Nothing above ``newest`` (the caller's last commit) is touched, nor what is in ``protect``, nor another job's. A
    manifest that cannot be read does not count as kept, so damage never pushes the last good one out. ``known`` holds
    the positions that were read before and are the job's; it grows, and saves reading them again.

    Raises CloudError.
    """
    if keep < 1:
        raise ValueError(keep)
    protected = {newest, *protect}
    known = set() if known is None else known
    removed = []
    kept = 0
    for position in committed(store):
        if position > newest:
            continue
        if kept < keep:
            kept += _is_valid(store, position, job, known)
        elif position not in protected and _is_valid(store, position, job, known):
            removed.append(layout.manifest(position))
    store.delete(removed)
    return removed


def _is_valid(store: Store, position: Position, job: JobRef, known: set[Position]) -> bool:
    if position in known:
        return True
    try:
        valid = load(store, position, job) is not None
    except CorruptCheckpoint:
        return False
    if valid:
        known.add(position)
    return valid
