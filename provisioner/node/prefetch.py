"""Beside the pull of an image: bring what the node in the container will ask for to where it looks.

No epoch is taken, and nothing is written to the store. What goes wrong costs one line: the node fetches by itself. The
process may be killed at any moment; bytes that are here by then are used, once their hash is checked again.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import zstandard

from provisioner.checkpoint.restore import Progress, restore
from provisioner.errors import FailoverError, StoreError
from provisioner.node import data_list, rooms
from provisioner.node.bootstrap import Bootstrap
from provisioner.node.data_work import reserve
from provisioner.node.patience import patiently
from provisioner.node.stores import Stores

T = TypeVar("T")

PATIENCE_S = 300.0
"""How long a store that does not answer is asked, in seconds."""
LINE_S = 5.0
"""How often progress is said, in seconds."""


def prefetch(
    boot: Bootstrap,
    root: Path,
    *,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Restore the newest checkpoint that is whole below ``root``. Never raises.

    Where an earlier start has left a run, nothing is done: its bytes serve. ``clock`` gives seconds.
    """
    try:
        (root / rooms.RUNS).mkdir(parents=True, exist_ok=True, mode=0o700)
        if any((root / rooms.RUNS).iterdir()):
            return
        _bring(boot, root, environ, say, clock)
    except FailoverError as error:
        say(f"nothing more is fetched before the image is here: {error}")
    except OSError as error:
        say(f"nothing more is fetched before the image is here: {error.filename}: {error.strerror}")
    except Exception as error:  # noqa: BLE001 - the boundary: a start never fails by this
        say(f"nothing more is fetched before the image is here: {type(error).__name__}")


def end_with_parent() -> None:
    """End this process when the script that started it is gone. Returns at once."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _bring(
    boot: Bootstrap, root: Path, environ: Mapping[str, str], say: Callable[[str], None], clock: Callable[[], float]
) -> None:
    stores = Stores(boot, environ)
    store = stores.own(timeout_s=120, retry_s=60)
    cancel = threading.Event()

    def ask(call: Callable[[], T]) -> T:
        return patiently(call, seconds=PATIENCE_S, cancel=cancel, by_role=boot.credentials is None)

    order = boot.data
    kept_free = 0 if order is None else _bytes_of_data(order.key, ask(lambda: store.get(order.key)))

    def free_bytes(path: Path) -> int:
        usage = shutil.disk_usage(path)
        # The node restores beside it, and data must find the room that they would have without.
        return (usage.free - (kept_free + reserve(usage.total) if order else 0)) // 2

    place = root / rooms.RUNS / rooms.PREFETCHED / "restored"
    found = ask(
        lambda: restore(
            store,
            boot.job,
            place,
            replicas=stores.nearest_first(store, say),
            report=say,
            cancel=cancel,
            progress=_progress(say, clock),
            free_bytes=free_bytes,
        )
    )
    if found is not None:
        say(
            f"step {found.position.step} is here before the node runs "
            f"({found.total_bytes / 2**20:.1f} MiB in {found.seconds:.1f} s)"
        )


def _bytes_of_data(key: str, listed: bytes | None) -> int:
    """Return what the job's data will take. The list stays in the store: only the owner of the epoch may remove it.

    Raises StoreError where nobody can tell yet.
    """
    try:
        entries = data_list.parsed(listed or b"")
    except (ValueError, KeyError, TypeError, AttributeError, zstandard.ZstdError) as error:
        raise StoreError(f"the list of data, {key}, cannot be read") from error
    sizes = [None if entry.unpack else file.size for entry in entries for file in entry.files]
    if None in sizes:
        raise StoreError("how much room the job's data take is known when they are here")
    return sum(size or 0 for size in sizes)


def _progress(say: Callable[[str], None], clock: Callable[[], float]) -> Progress:
    due = clock() + LINE_S

    def on_bytes(done: int, total: int) -> None:
        nonlocal due
        if clock() >= due and done < total:
            due = clock() + LINE_S
            say(f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB of the checkpoint are here")

    return on_bytes
