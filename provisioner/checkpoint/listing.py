"""What a place holds: its checkpoints in a list, and whether they are whole."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import Blob, Manifest
from provisioner.checkpoint.restore import load
from provisioner.checkpoint.store import Store, Stored
from provisioner.checkpoint.verify import verify
from provisioner.errors import ConfigError, CorruptCheckpoint
from provisioner.model import JobRef

THREADS = 4
"""Manifests that are read at once. One of a TB takes some dozen MB of memory."""

LOOK_INTO = 20
"""Folders that are looked into, where somebody has named the store and not the place in it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in a store, by its manifest. Of one with a ``problem`` only the first fields and ``time`` are known.

    ``time`` is when it was saved, in Unix seconds by the writer's clock (of a damaged one by the store's);
    ``total_bytes`` the size of its ``files`` together. ``new_bytes`` is what it has in the store that no older one in
    the same list has, None outside a list.
    """

    step: int
    epoch: int
    problem: str = ""
    time: float = 0.0
    entry: str = ""
    job: JobRef | None = None
    total_bytes: int = 0
    files: int = 0
    new_bytes: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def position(self) -> Position:
        """Its place in the order of restores."""
        return Position(self.epoch, self.step)

    @property
    def key(self) -> str:
        """The key of its manifest, below the store's URI."""
        return layout.manifest(self.position)


@dataclass(frozen=True, slots=True)
class Verified:
    """What became of one checkpoint's check; it is whole when there are no ``problems``.

    ``damaged`` are the ids of packs among them.
    """

    checkpoint: Checkpoint
    problems: tuple[str, ...]
    damaged: tuple[str, ...] = ()


def described(manifest: Manifest) -> Checkpoint:
    """Return a manifest's outline."""
    return Checkpoint(
        step=manifest.step,
        epoch=manifest.epoch,
        time=manifest.time,
        entry=manifest.entry,
        job=manifest.job,
        total_bytes=manifest.size,
        files=len(manifest.files),
        metadata=manifest.metadata,
    )


def listed(store: Store, job: JobRef | None) -> list[Checkpoint]:
    """Return all checkpoints, newest first; of ``job`` only, where it is given. Raises CloudError."""
    there: list[tuple[Position, Stored]] = []
    for stored in store.objects(layout.CHECKPOINTS):
        position = layout.position(stored.key)
        if position is not None:
            there.append((position, stored))

    def outline(place: tuple[Position, Stored]) -> tuple[Checkpoint, Mapping[str, int]] | None:
        position, stored = place
        try:
            manifest = load(store, position, job)
        except CorruptCheckpoint as error:
            return Checkpoint(position.step, position.epoch, str(error), stored.modified), {}
        return (described(manifest), manifest.packs) if manifest else None

    found: list[Checkpoint] = []
    seen: set[str] = set()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="list") as pool:
        for outlined in pool.map(outline, sorted(there)):  # oldest first
            if outlined is None:
                continue
            checkpoint, packs = outlined
            new = sum(size for identity, size in packs.items() if identity not in seen)
            seen.update(packs)
            found.append(changed(checkpoint, new_bytes=None if checkpoint.problem else new))
    return found[::-1]


def below(store: Store) -> list[str]:
    """Return the first folders of a store that hold checkpoints themselves, as that of several jobs does."""
    names = [name for name in store.folders("") if not name.startswith(".")][:LOOK_INTO]
    return [name for name in names if layout.CHECKPOINTS in store.folders(name)]


def refuse_other(source: Store, target: Store, position: Position) -> None:
    """Raise ConfigError when ``target`` has another checkpoint at this position; one that is damaged is no obstacle."""
    try:
        theirs = load(target, position, None)
    except CorruptCheckpoint:
        return
    ours = load(source, position, None) if theirs is not None else None
    if theirs is not None and ours is not None and _content(theirs) != _content(ours):
        raise ConfigError(
            f"{target.uri}: another checkpoint of step {position.step} is there already",
            hint="copy to another prefix, or force it",
        )


def _content(manifest: Manifest) -> tuple[object, ...]:
    """Return what is in a checkpoint, wherever it is stored."""
    files = tuple(
        (file.path, file.size, file.mode, tuple((blob.length, blob.digest) for blob in file.blobs))
        for file in manifest.files
    )
    return manifest.job, manifest.entry, files, manifest.folders, manifest.links, manifest.metadata


def verified(
    store: Store,
    positions: Sequence[Position],
    job: JobRef | None,
    *,
    quick: bool,
    progress: Callable[[int, int], None] | None,
    cancel: threading.Event | None,
) -> list[Verified]:
    """Check checkpoints one after the other. What was found whole in one is not read for the next."""
    found: list[Verified] = []
    whole: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    for position in positions:
        try:
            manifest = load(store, position, job)
        except CorruptCheckpoint as error:
            found.append(Verified(Checkpoint(position.step, position.epoch, str(error)), (str(error),)))
            continue
        if manifest is None:
            continue
        left = _without(manifest, whole)
        problems = verify(store, left, quick=quick, progress=progress, cancel=cancel)
        damaged = {identity for identity in manifest.packs if any(identity in problem for problem in problems)}
        if not quick and len(positions) > 1:
            for _, _, blob in left.stored():
                if blob.pack not in damaged:
                    whole[blob.pack].add((blob.offset, blob.digest))
        found.append(Verified(described(manifest), tuple(problems), tuple(sorted(damaged))))
    return found


def _without(manifest: Manifest, whole: Mapping[str, set[tuple[int, str]]]) -> Manifest:
    """Return a manifest without the blobs that are known to be whole."""
    if not whole:
        return manifest

    def is_left(blob: Blob) -> bool:
        return (blob.offset, blob.digest) not in whole.get(blob.pack, ())

    files = (changed(file, blobs=tuple(filter(is_left, file.blobs))) for file in manifest.files)
    return changed(manifest, files=tuple(files))
