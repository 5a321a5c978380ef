"""Keep the last n checkpoints. Manifests only: chunks may be shared with a save in flight and are swept elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.restore import committed, load
from provisioner.checkpoint.store import Store
from provisioner.errors import CorruptCheckpoint
from provisioner.model import JobRef


def prune(store: Store, job: JobRef, keep: int, *, newest: Position, protect: Iterable[Position] = ()) -> list[str]:
    """Remove the job's manifests behind the ``keep`` newest valid ones; return the removed keys.

    Nothing above ``newest`` (the caller's last commit) is touched, nor what is in ``protect``, nor another job's. A
    manifest that cannot be read does not count as kept, so damage never pushes the last good one out.

    Raises CloudError.
    """
    if keep < 1:
        raise ValueError(keep)
    protected = {newest, *protect}
    removed = []
    kept = 0
    for position in committed(store):
        if position > newest:
            continue
        if kept < keep:
            kept += _is_valid(store, position, job)
        elif position not in protected and _is_valid(store, position, job):
            removed.append(layout.manifest(position))
    store.delete(removed)
    return removed


def _is_valid(store: Store, position: Position, job: JobRef) -> bool:
    try:
        return load(store, position, job) is not None
    except CorruptCheckpoint:
        return False
