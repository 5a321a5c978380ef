"""Remove packs that no checkpoint names any more. Safe beside a save of any length, and beside a second sweep.

In two phases. First what no manifest names is *condemned*: its ids are written down in ``sweeps/<id>.json``. From
then on no writer announces a commit that names it (``commit.py``). Later, when that object is older than the grace,
all manifests are read again, and what still none of them names is removed; the list goes last. A condemned pack that a
manifest does name, because that was written meanwhile, stays until the manifest goes.

The ages are differences of the store's own times. The grace spares work (a slow save need not send things again, a
restore under way is not disturbed); correctness does not rest on it, so it may be 0.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provisioner.checkpoint import layout
from provisioner.checkpoint.commit import sweep_list
from provisioner.checkpoint.manifest import decode
from provisioner.checkpoint.staging import remove_unfinished
from provisioner.checkpoint.store import Store, Stored
from provisioner.errors import CorruptCheckpoint, StoreError

GRACE_S = 3600.0
_LIST = ".json"
_CLOCK = ".clock"
_CLOCK_TRIES = 5


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did, or with ``dry_run`` would do. Packs and bytes; ``waiting`` ones are condemned and still there.

    ``kept`` ones are named by a checkpoint, or younger than the grace.
    """

    condemned: int = 0
    condemned_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0


def sweep(store: Store, *, grace_s: float = GRACE_S, dry_run: bool = False) -> Swept:
    """Condemn what no manifest names, and remove what was condemned ``grace_s`` seconds ago or earlier.

    Raises StoreError when a manifest cannot be read: what it names is not known, so nothing is removed. CloudError.
    """
    if not dry_run:
        remove_unfinished(store, before=time.time() - grace_s if grace_s > 0 else math.inf)
    there = _packs(store)
    named = _named(store)
    lists = _lists(store)
    doomed = {identity for _, identities in lists for identity in identities}
    spare = there.keys() - named - doomed
    if not spare and not lists:
        return Swept(kept=len(there), kept_bytes=_bytes(there, there))
    now = math.inf  # of no clock
    if grace_s > 0:
        now = time.time() if dry_run else store_time(store)

    def is_old(stored: Stored) -> bool:
        return now - stored.modified >= grace_s

    fresh = {identity for identity in spare if is_old(there[identity])}
    if fresh and not dry_run:
        store.put(f"{layout.SWEEPS}/{secrets.token_hex(8)}{_LIST}", json.dumps({"packs": sorted(fresh)}).encode())
        lists = _lists(store)
    due = {identity for stored, identities in lists if is_old(stored) for identity in identities}
    if dry_run and grace_s <= 0:
        due |= fresh
    # Read again: a manifest may have come after the list was written. This reading is the one that counts.
    gone = (due & there.keys()) - _named(store) if due else set()
    if not dry_run:
        store.delete(layout.pack(identity) for identity in sorted(gone))
        _drop_lists(store, lists)
    doomed |= fresh
    waiting = (doomed & there.keys()) - gone
    kept = there.keys() - doomed
    return Swept(
        condemned=len(fresh),
        condemned_bytes=_bytes(there, fresh),
        deleted=len(gone),
        deleted_bytes=_bytes(there, gone),
        waiting=len(waiting),
        waiting_bytes=_bytes(there, waiting),
        kept=len(kept),
        kept_bytes=_bytes(there, kept),
    )


def _packs(store: Store) -> dict[str, Stored]:
    found = {}
    for stored in store.objects(layout.PACKS):
        if (identity := layout.pack_of(stored.key)) is not None:
            found[identity] = stored
    return found


def _named(store: Store) -> set[str]:
    """Return every pack that a manifest names, of whichever job and epoch."""
    named: set[str] = set()
    # Asked twice if need be: some stores wrap an error into an answer that reads like an empty listing.
    for stored in store.objects(layout.CHECKPOINTS) or store.objects(layout.CHECKPOINTS):
        data = store.get(stored.key)
        if data is None:  # removed since the listing
            continue
        try:
            named |= decode(data).packs.keys()
        except CorruptCheckpoint as error:
            raise StoreError(
                f"{store.uri}/{stored.key}: {error}; nothing is swept, since what it names is not known",
                hint="`failover checkpoint verify` shows what is whole, `rm` removes this one",
            ) from error
    return named


def _lists(store: Store) -> list[tuple[Stored, list[str]]]:
    """Return what sweeps have written down. Such a list is written once and never changed."""
    return [
        (stored, sweep_list(store.get(stored.key)))
        for stored in store.objects(layout.SWEEPS)
        if stored.key.endswith(_LIST)
    ]


def store_time(store: Store) -> float:
    """Return the store's own time, in Unix seconds: that of an object written now. Raises CloudError."""
    key = f"{layout.SWEEPS}/{secrets.token_hex(8)}{_CLOCK}"
    for _ in range(_CLOCK_TRIES):
        store.put(key, b"")
        times = [stored.modified for stored in store.objects(layout.SWEEPS) if stored.key == key]
        if times:
            store.delete([key])
            return times[0]
    raise StoreError(f"{store.uri}/{key}: written, but never listed")  # or cleared away by as many other sweeps


def _drop_lists(store: Store, lists: list[tuple[Stored, list[str]]]) -> None:
    """Remove the lists of which nothing is left in the store, and what ``store_time`` left in a sweep that died."""
    there = _packs(store)
    clocks = [stored.key for stored in store.objects(layout.SWEEPS) if stored.key.endswith(_CLOCK)]
    store.delete([*clocks, *(stored.key for stored, ids in lists if not any(identity in there for identity in ids))])


def _bytes(there: Mapping[str, Stored], identities: Iterable[str]) -> int:
    return sum(there[identity].size for identity in identities)
