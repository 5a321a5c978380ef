"""Who uses a prefix of a store: a job, people who push by hand, or nobody. Asked before something is saved by hand."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from provisioner.checkpoint import epochs, layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.restore import committed, load
from provisioner.checkpoint.store import Store
from provisioner.checkpoint.sweep import store_time
from provisioner.errors import ConfigError, CorruptCheckpoint, Fenced
from provisioner.model import JobRef

ALIVE_S = 60.0
"""How old the last sign of life of a machine may be, by the store's time, for it to count as running."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Whose the prefix is, the newest epoch, and all checkpoints, best first and damaged ones too."""

    job: JobRef | None
    epoch: int
    positions: list[Position]


def usage(store: Store, job: JobRef | None = None, *, known: bool = False) -> Usage:
    """Look who uses a prefix. ``known``: the checkpoints are those of ``job``, be it None. Raises CloudError."""
    with ThreadPoolExecutor(3, thread_name_prefix="look") as pool:
        listing = pool.submit(committed, store)
        used = pool.submit(epochs.newest_used, store)
        spec = pool.submit(_spec_job, store) if job is None else None
    positions = listing.result()
    epoch = max(used.result(), positions[0].epoch if positions else 0)
    if spec is not None:
        job = spec.result() or (None if known else _saved_job(store, positions))
    return Usage(job, epoch, positions)


def refuse_running(store: Store) -> None:
    """Raise ConfigError when a machine trains here right now; or CloudError."""
    owned = epochs.newest_epoch(store)
    numbers = [int(name) for name in store.folders(layout.EPOCHS) if name.isascii() and name.isdigit()]
    signs: dict[int, float] = {}
    for number in numbers:
        if number < owned:
            continue
        own = {layout.heartbeat(number), layout.owner(number)}
        times = [stored.modified for stored in store.objects(f"{layout.EPOCHS}/{number}") if stored.key in own]
        if times and not _ended(store, number):
            signs[number] = max(times)
    if not signs:
        return
    now = store_time(store)
    for number, seen in sorted(signs.items()):
        if now - seen < ALIVE_S:
            raise ConfigError(
                f"{store.uri}: a machine trains here (epoch {number}, seen {max(0.0, now - seen):.0f} s ago)",
                hint="wait until the job is done, or take it down: `failover status`",
            )


def refuse_newer(store: Store, epoch: int) -> None:
    """Raise ConfigError when a machine has taken the job up since ``epoch`` was found to be the newest."""
    try:
        epochs.check_newer(store, epoch)
    except Fenced:
        raise ConfigError(f"{store.uri}: a machine has taken the job up meanwhile; nothing was saved") from None


def _spec_job(store: Store) -> JobRef | None:
    data = store.get(layout.SPEC)
    try:
        job = json.loads(data or b"{}")["job"]
        return JobRef(str(job["name"]), str(job["uid"]))
    except (ValueError, KeyError, TypeError):
        return None


def _saved_job(store: Store, positions: list[Position]) -> JobRef | None:
    """Return the job of the newest checkpoint that can be read."""
    for position in positions:
        try:
            if (manifest := load(store, position, None)) is not None:
                return manifest.job
        except CorruptCheckpoint:
            continue
    return None


def _ended(store: Store, epoch: int) -> bool:
    """Say whether the machine of an epoch has said itself that it is at its end."""
    try:
        return json.loads(store.get(layout.heartbeat(epoch)) or b"{}").get("end") is not None
    except (ValueError, AttributeError):
        return False
