"""Check a checkpoint without writing it anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable

from provisioner.checkpoint import layout
from provisioner.checkpoint.commit import missing
from provisioner.checkpoint.fetch import DamagedPack, Range, fetch, ranges
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

    ``quick`` looks only whether every pack is there, at its size, and not about to be swept. Raises Abandoned,
    CloudError.
    """
    lost = missing(store, manifest)
    problems = [f"{layout.PACKS}/{identity} is missing, condemned or not of its size" for identity in sorted(lost)]
    if quick:
        return problems
    wanted = [part for part in ranges(manifest) if part.pack not in lost]
    total = sum(part.end - part.start for part in wanted)
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(done, total)

    def keep_nothing(_file: File, _offset: int, _data: memoryview) -> None:
        return

    damaged: set[str] = set()

    def left() -> list[Range]:
        return [part for part in wanted if part.pack not in damaged]

    while wanted:
        try:
            fetch(store, left(), keep_nothing, threads=threads, cancel=cancel or threading.Event(), on_bytes=on_bytes)
            break
        except DamagedPack as error:
            problems.append(str(error))
            damaged.add(error.identity)
    return problems
