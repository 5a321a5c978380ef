"""The commit: a manifest is written, and announced only once all that it names is sure to stay.

A sweeper (``sweep.py``) writes down what it is going to remove, reads all manifests again, and removes what none of
them names. So a writer that has written its manifest, then finds no condemned pack of its own, then finds all of its
packs in the store, can be sure: whoever condemns one of them later will read this manifest before removing anything.
No clock is part of this; the store must list what was written before the listing began, as S3 and GCS do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as changed
from typing import TypeAlias

from provisioner.checkpoint import layout
from provisioner.checkpoint.manifest import Blob, File, Manifest, decode, encode
from provisioner.checkpoint.packs import Packer
from provisioner.checkpoint.store import Store
from provisioner.checkpoint.tree import STANDARD, Sizes
from provisioner.errors import ConfigError, CorruptCheckpoint, StoreError

TRIES = 5
THREADS = 4
SMALL_PACKS = 16
"""How many packs of less than half the usual size a checkpoint may refer to."""
Read: TypeAlias = Callable[[File, int, Blob], bytes]
"""Gives the bytes of a blob that stands in ``file`` at an offset, checked against its hash."""


class StepTakenError(ConfigError):
    """Somebody else has saved a checkpoint of this step."""

    def __init__(self, store: Store, step: int) -> None:
        super().__init__(f"{store.uri}: step {step} is there already", hint="choose another, or force it")


def commit(
    store: Store,
    manifest: Manifest,
    read: Read,
    *,
    fence: Callable[[], None],
    told_to_stop: Callable[[], None] = lambda: None,
    replace: Collection[str] = (),
    only_new: bool = False,
    sizes: Sizes = STANDARD,
) -> tuple[Manifest, int]:
    """Write the manifest and make sure of all that it names; return it as it stands then, and the bytes sent for that.

    Packs of ``replace``, and those that are condemned or gone, are replaced: ``read`` gives what was in them. With
    ``only_new`` no other checkpoint of this step is replaced: StepTakenError. Raises Fenced, Abandoned, StoreError when
    another job has this name, CloudError, and what ``read`` raises.
    """
    key = layout.manifest(manifest.position)
    lost, sent = set(replace), 0
    if _occupied(store, manifest):  # what is replaced was announced: nothing doubtful may take its place
        if only_new:
            raise StepTakenError(store, manifest.step)
        lost |= missing(store, manifest)
    for attempt in range(TRIES):
        if lost:
            manifest, more = _without(manifest, lost, store, read, told_to_stop, sizes)
            sent += more
        told_to_stop()
        fence()
        data = encode(manifest)
        if not only_new or attempt or not _created(store, manifest, data):
            store.put(key, data)
        with ThreadPoolExecutor(1, thread_name_prefix="look") as pool:
            there = pool.submit(store.get, key) if only_new else None
            lost = missing(store, manifest)
        if there and there.result() != data:  # a store that ignores conditions: the last writer has it
            raise StepTakenError(store, manifest.step)
        if not lost:
            return manifest, sent
    raise StoreError(
        f"{store.uri}/{key}: what it names vanishes from the store", hint="look for a lifecycle rule on the bucket"
    )


def _created(store: Store, manifest: Manifest, data: bytes) -> bool:
    """Write a manifest only if there is none; False where the store cannot. Raises StepTakenError when there is."""
    key = layout.manifest(manifest.position)
    try:
        if store.create(key, data):
            return True
    except StoreError:
        if store.create_refused:
            return False
        raise
    there = store.get(key)
    if there is not None and there != data:
        raise StepTakenError(store, manifest.step)
    return there is not None  # our own write, whose answer was lost; or a 409 that stored nothing


def condemned(store: Store) -> set[str]:
    """Return the ids of all packs that a sweep is going to remove. Raises CloudError."""
    found: set[str] = set()
    for stored in store.objects(layout.SWEEPS):
        found.update(sweep_list(store.get(stored.key)))
    return found


def sweep_list(data: bytes | None) -> list[str]:
    """Return the ids that a sweep has written down; none when it is gone by now, or was not written by a sweep."""
    try:
        return [str(identity) for identity in json.loads(data or b"{}").get("packs", [])]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []


def missing(store: Store, manifest: Manifest) -> set[str]:
    """Return the packs of a manifest that are condemned, gone, or not of their size. Raises CloudError.

    The order matters: first what is condemned, then what is there.
    """
    if not manifest.packs:
        return set()
    doomed = condemned(store)
    return gone(store, manifest) | (doomed & manifest.packs.keys())


def gone(store: Store, manifest: Manifest) -> set[str]:
    """Return the packs of a manifest that are not there, or not of their size. Raises CloudError."""
    there = {stored.key: stored.size for stored in store.objects(layout.PACKS)}
    return {identity for identity, size in manifest.packs.items() if there.get(layout.pack(identity)) != size}


def worth_replacing(manifest: Manifest, sizes: Sizes = STANDARD) -> set[str]:
    """Return the packs whose blobs are better sent again, in new ones.

    Those of which the checkpoint uses less than half: so the packs of a checkpoint are never more than twice what it
    needs, however long its history is. And the small ones, once there are many: so requests do not come to dominate.
    """
    used: dict[str, dict[int, int]] = {identity: {} for identity in manifest.packs}
    for _, _, blob in manifest.stored():
        used[blob.pack][blob.offset] = blob.length
    scarce = {identity for identity, size in manifest.packs.items() if 2 * sum(used[identity].values()) < size}
    small = {identity for identity, size in manifest.packs.items() if 2 * size < sizes.pack}
    return scarce | small if len(small) > SMALL_PACKS else scarce


def _occupied(store: Store, manifest: Manifest) -> bool:
    """Say whether there is a checkpoint of this step. Raises StoreError when it is another job's."""
    key = layout.manifest(manifest.position)
    data = store.get(key)
    try:
        other = decode(data) if data is not None else None
    except CorruptCheckpoint:
        return False
    if other is not None and other.job != manifest.job:
        raise StoreError(
            f"{store.uri}/{key}: belongs to another job{f' named {other.job.name}' if other.job else ''}",
            hint="give the jobs different names, or different stores",
        )
    return other is not None


def _without(
    manifest: Manifest, lost: set[str], store: Store, read: Read, told_to_stop: Callable[[], None], sizes: Sizes
) -> tuple[Manifest, int]:
    """Send what a manifest has in some packs again, in new ones; return the new manifest and the bytes sent."""
    moved = {}
    wanted = {blob.digest: (file, offset, blob) for file, offset, blob in manifest.stored() if blob.pack in lost}
    with (
        Packer(store, {}, threads=THREADS, told_to_stop=told_to_stop, sizes=sizes) as packer,
        ThreadPoolExecutor(THREADS, thread_name_prefix="read") as pool,
    ):
        places = list(wanted.values())
        for start in range(0, len(places), THREADS):
            told_to_stop()
            part = places[start : start + THREADS]
            for (_, _, blob), data in zip(part, pool.map(lambda place: read(*place), part), strict=True):
                moved[blob.digest] = packer.add(bytes.fromhex(blob.digest), memoryview(data))
    packs = {identity: size for identity, size in manifest.packs.items() if identity not in lost}
    packs |= {pack.identity: pack.size for pack, _ in moved.values()}

    def new(blob: Blob) -> Blob:
        if blob.pack not in lost:
            return blob
        pack, offset = moved[blob.digest]
        return changed(blob, pack=pack.identity, offset=offset)

    files = tuple(changed(file, blobs=tuple(new(blob) for blob in file.blobs)) for file in manifest.files)
    return changed(manifest, packs=packs, files=files), packer.sent_bytes
