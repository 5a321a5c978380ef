"""Check a checkpoint without writing it anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable

from provisioner.checkpoint import layout
from provisioner.checkpoint.commit import gone
from provisioner.checkpoint.fetch import DamagedPack, fetch, ranges
from provisioner.checkpoint.manifest import File, Manifest
from provisioner.checkpoint.store import Store

THREADS = 16


def verify(
    store: Store,
    manifest: Manifest,
    *,
    quick: bool = False,
    progress: Callable[[int, int], None] | None = None,
    cancel: threading.Event | None = None,
    threads: int = THREADS,
) -> list[str]:
    """Return what is wrong with a checkpoint, a line for each pack; nothing when every byte matches its hash.

    ``quick`` looks only whether every pack is there, at its size. That a sweep has condemned one is no problem: it
    stays for as long as a manifest names it. Raises Abandoned, CloudError.
    """
    if quick:
        return [
            f"{layout.PACKS}/{identity} is missing, or not of its size" for identity in sorted(gone(store, manifest))
        ]
    wanted = ranges(manifest)
    total = sum(part.end - part.start for part in wanted)
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(done, total)

    def keep_nothing(_file: File, _offset: int, _data: memoryview) -> None:
        return

    damaged: dict[str, str] = {}

    def on_damage(error: DamagedPack) -> None:
        damaged.setdefault(error.identity, str(error))

    fetch(
        store,
        (part for part in wanted if part.pack not in damaged),
        keep_nothing,
        threads=threads,
        cancel=cancel or threading.Event(),
        on_bytes=on_bytes,
        on_damage=on_damage,
    )
    return [damaged[identity] for identity in sorted(damaged)]
